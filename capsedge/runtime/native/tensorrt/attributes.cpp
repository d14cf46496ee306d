#include "attributes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "capsedge_cuda.h"

namespace capsedge {
namespace tensorrt {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

// Not an attribute of the operator: the multiprocessors of the GPU that the engine was built on. They determine its
// workspace and the order of its sums, whatever power mode it runs in. If missing: those of this GPU. 0: built without
// a GPU, for any GPU; its workspace suffices for all.
static constexpr AttributeSpec kMultiprocessors = {"multiprocessors", AttributeType::kInt, false, false, false, {0}, 0};
static PluginFieldType field_type(const AttributeSpec& a) {
  return a.is_integer() ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32;
}
static bool is_of_the_gpu(const AttributeSpec& a) { return std::strcmp(a.name, kMultiprocessors.name) == 0; }

const std::vector<AttributeSpec>& attributes_of(OperatorId op) {
  static const std::vector<std::vector<AttributeSpec>> all = [] {
    std::vector<std::vector<AttributeSpec>> made;
    for (const OperatorSpec& spec : kOperators) {
      made.emplace_back(spec.attributes.begin(), spec.attributes.end());
      if (id_of(spec) != OperatorId::kSquash) made.back().push_back(kMultiprocessors);
    }
    return made;
  }();
  return all[static_cast<size_t>(op)];
}

static size_t place_of(OperatorId op, const char* name) {
  const auto& known = attributes_of(op);
  size_t k = 0;
  while (k + 1 < known.size() && std::strcmp(known[k].name, name) != 0) ++k;
  return k;
}

int32_t PluginAttributes::integer(const char* name, size_t at) const {
  return values_.integers[place_of(op_, name)][at];
}
float PluginAttributes::number(const char* name) const { return values_.floats[place_of(op_, name)][0]; }
std::vector<float> PluginAttributes::numbers(const char* name) const { return values_.floats[place_of(op_, name)]; }

static std::string check(OperatorId op, const Values& values) {
  const std::string why = wrong_attributes(spec_of(op), PluginAttributes(op, values));
  if (!why.empty()) return why;
  const auto& known = attributes_of(op);
  for (size_t k = 0; k < known.size(); ++k) {
    const std::string name = known[k].name;
    for (const float value : values.floats[k])
      if (!std::isfinite(value)) return "attribute '" + name + "' is not a finite number";
    if (known[k].is_list() && known[k].is_integer() && values.integers[k].size() != known[k].integers.size())
      return "attribute '" + name + "': wanted " + std::to_string(known[k].integers.size()) + " numbers";
    if (is_of_the_gpu(known[k]) && values.integers[k][0] == CAPSEDGE_CUDA_OLD_DRIVER)
      return "the driver is too old for the CUDA runtime that was found: install a newer driver, or name another runtime in CAPSEDGE_CUDART";
    if (is_of_the_gpu(known[k]) && values.integers[k][0] < 0) return "attribute 'multiprocessors' is negative";
    const auto above_zero = [](auto value) { return value > 0; };
    if (known[k].positive &&
        !(std::all_of(values.integers[k].begin(), values.integers[k].end(), above_zero) &&
          std::all_of(values.floats[k].begin(), values.floats[k].end(), above_zero)))
      return "attribute '" + name + "' is not positive";
    if (known[k].flag && values.integers[k][0] != 0 && values.integers[k][0] != 1)
      return "attribute '" + name + "': wanted 0 or 1";
  }
  return "";
}

// The field of this name with values, or null.
static const PluginField* find_field(const nvinfer1::PluginFieldCollection* fields, const char* name) {
  const PluginField* found = nullptr;
  for (int32_t f = 0; fields && f < fields->nbFields; ++f)
    if (fields->fields[f].name && std::strcmp(fields->fields[f].name, name) == 0) found = &fields->fields[f];
  return found && found->data && found->length >= 1 ? found : nullptr;
}

static void set_default(const AttributeSpec& attribute, std::vector<int32_t>& integers, std::vector<float>& floats) {
  if (is_of_the_gpu(attribute)) {
    integers = {capsedge_cuda_multiprocessors()};
  } else if (attribute.is_integer()) {
    for (const int64_t value : attribute.integers) integers.push_back(static_cast<int32_t>(value));
  } else {
    floats = {attribute.number};
  }
}

// Empty, or what is wrong with the field.
static std::string read_field(const AttributeSpec& wanted, const PluginField& field, std::vector<int32_t>& integers,
                              std::vector<float>& floats) {
  // The parser passes ONNX integers as INT32; other callers may pass INT64.
  const bool wide = wanted.is_integer() && field.type == PluginFieldType::kINT64;
  if ((field.type != field_type(wanted) && !wide) || (!wanted.is_list() && field.length != 1))
    return std::string("attribute '") + wanted.name + "' has the wrong type or length";
  if (wide) {
    const int64_t* data = static_cast<const int64_t*>(field.data);
    for (int32_t v = 0; v < field.length; ++v) {
      if (data[v] != static_cast<int32_t>(data[v])) return std::string("attribute '") + wanted.name + "' is too large";
      integers.push_back(static_cast<int32_t>(data[v]));
    }
  } else if (wanted.is_integer()) {
    const int32_t* data = static_cast<const int32_t*>(field.data);
    integers.assign(data, data + field.length);
  } else {
    const float* data = static_cast<const float*>(field.data);
    floats.assign(data, data + field.length);
  }
  return "";
}

std::string read_fields(OperatorId op, const nvinfer1::PluginFieldCollection* fields, Values& values) {
  const auto& known = attributes_of(op);
  values.integers.assign(known.size(), {});
  values.floats.assign(known.size(), {});
  for (size_t k = 0; k < known.size(); ++k) {
    if (const PluginField* field = find_field(fields, known[k].name)) {
      const std::string why = read_field(known[k], *field, values.integers[k], values.floats[k]);
      if (!why.empty()) return why;
    } else if (known[k].required) {
      return std::string("attribute '") + known[k].name + "' is missing";
    } else {
      set_default(known[k], values.integers[k], values.floats[k]);
    }
  }
  return check(op, values);
}

std::vector<PluginField> write_fields(OperatorId op, const Values& values) {
  const auto& known = attributes_of(op);
  std::vector<PluginField> fields;
  for (size_t k = 0; k < known.size(); ++k) {
    const bool integer = known[k].is_integer();
    const void* data = integer ? static_cast<const void*>(values.integers[k].data()) : values.floats[k].data();
    const size_t count = integer ? values.integers[k].size() : values.floats[k].size();
    fields.emplace_back(known[k].name, data, field_type(known[k]), static_cast<int32_t>(count));
  }
  return fields;
}

static constexpr const char* kWorkspace = "workspace";

int64_t read_workspace(const nvinfer1::PluginFieldCollection* fields) {
  const PluginField* field = find_field(fields, kWorkspace);
  return field && field->type == PluginFieldType::kINT64 ? *static_cast<const int64_t*>(field->data) : kNotAsked;
}

PluginField workspace_field(const int64_t* bytes) { return {kWorkspace, bytes, PluginFieldType::kINT64, 1}; }

std::vector<PluginField> announce_fields(OperatorId op) {
  std::vector<PluginField> fields;
  for (const AttributeSpec& a : attributes_of(op)) {
    if (is_of_the_gpu(a)) continue;  // present in engines, not in nodes
    fields.emplace_back(a.name, nullptr, field_type(a), 1);
  }
  return fields;
}

std::string to_text(OperatorId op, const Values& values) {
  const auto& known = attributes_of(op);
  std::string text;
  for (size_t k = 0; k < known.size(); ++k) {
    text += std::string(k ? ";" : "") + known[k].name + "=";
    char word[32];
    for (const int32_t value : values.integers[k]) text += std::to_string(value) + ",";
    for (const float value : values.floats[k]) {
      std::snprintf(word, sizeof word, "%.9g,", static_cast<double>(value));
      text += word;
    }
  }
  return text;
}

}  // namespace tensorrt
}  // namespace capsedge
