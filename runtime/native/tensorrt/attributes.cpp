#include "attributes.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "capsedge_cuda.h"

namespace capsedge {
namespace tensorrt {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

const char* name_of(Operator op) {
  switch (op) {
    case Operator::kSquash: return "Squash";
    case Operator::kDynamic: return "DynamicRouting";
    case Operator::kEm: return "EMRouting";
    case Operator::kAttention: return "AttentionRouting";
  }
  return "";
}

// Not of the operator: of the GPU that the engine was built on, which its workspace and the order of its sums follow
// from, whatever power mode it runs in. Not given: of this GPU. 0: built without one, for any GPU; its workspace is
// enough for all.
static constexpr Attribute kMultiprocessors = {"multiprocessors", true, false, false, 0};
static bool is_of_the_gpu(const Attribute& a) { return std::strcmp(a.name, kMultiprocessors.name) == 0; }

const std::vector<Attribute>& attributes_of(Operator op) {
  static const std::vector<Attribute> squash = {{"axis", true, false, false, -1}, {"epsilon", false, false, false, 1e-8}};
  static const std::vector<Attribute> dynamic = {
      {"iterations", true, false, false, 3},
      {"leaky", true, false, false, 0},
      {"epsilon", false, false, false, 1e-8},
      kMultiprocessors};
  static const std::vector<Attribute> em = {{"iterations", true, false, true, 0},
                                            {"strides", true, true, false, 1},
                                            {"inverse_temperatures", false, true, true, 0},
                                            {"coordinate_addition", true, false, false, 0},
                                            {"shared", true, false, false, 0},
                                            {"epsilon", false, false, false, 1e-6},
                                            kMultiprocessors};
  static const std::vector<Attribute> attention = {{"strides", true, true, false, 1},
                                                   {"matrix_pose", true, false, false, 1},
                                                   {"agreement_scale", false, false, true, 0},
                                                   {"epsilon", false, false, false, 1e-5},
                                                   kMultiprocessors};
  switch (op) {
    case Operator::kSquash: return squash;
    case Operator::kDynamic: return dynamic;
    case Operator::kEm: return em;
    case Operator::kAttention: return attention;
  }
  return squash;
}

static size_t place_of(Operator op, const char* name) {
  const auto& known = attributes_of(op);
  size_t k = 0;
  while (k + 1 < known.size() && std::strcmp(known[k].name, name) != 0) ++k;
  return k;
}

int32_t integer(Operator op, const Values& values, const char* name, size_t at) {
  return values.integers[place_of(op, name)][at];
}
float number(Operator op, const Values& values, const char* name) { return values.floats[place_of(op, name)][0]; }
const std::vector<float>& numbers(Operator op, const Values& values, const char* name) {
  return values.floats[place_of(op, name)];
}

static std::string check(Operator op, const Values& values) {
  const auto& known = attributes_of(op);
  for (size_t k = 0; k < known.size(); ++k) {
    const std::string name = known[k].name;
    for (const float value : values.floats[k])
      if (!std::isfinite(value)) return "attribute '" + name + "' is not a finite number";
    if (name == "epsilon" && !(values.floats[k][0] > 0)) return "attribute 'epsilon' is not positive";
    if (name == "iterations" && (values.integers[k][0] < 1 || values.integers[k][0] > CAPSEDGE_CUDA_MAX_ITERATIONS))
      return "attribute 'iterations' is " + std::to_string(values.integers[k][0]) + ": wanted 1 to 64";
    if (is_of_the_gpu(known[k]) && values.integers[k][0] == CAPSEDGE_CUDA_OLD_DRIVER)
      return "the driver is too old for the CUDA that this plugin library was compiled with: compile it with the driver's";
    if (is_of_the_gpu(known[k]) && values.integers[k][0] < 0) return "attribute 'multiprocessors' is negative";
    if (name == "strides" && (values.integers[k].size() != 2 || values.integers[k][0] < 1 || values.integers[k][1] < 1))
      return "attribute 'strides': wanted two numbers of 1 or more";
    if (name == "leaky" || name == "shared" || name == "coordinate_addition" || name == "matrix_pose")
      if (values.integers[k][0] != 0 && values.integers[k][0] != 1) return "attribute '" + name + "': wanted 0 or 1";
  }
  if (op == Operator::kEm) {
    const size_t found = numbers(op, values, "inverse_temperatures").size();
    if (found != static_cast<size_t>(integer(op, values, "iterations")))
      return "attribute 'inverse_temperatures' has " + std::to_string(found) + " numbers, one an iteration is wanted";
  }
  return "";
}

std::string read_fields(Operator op, const nvinfer1::PluginFieldCollection* fields, Values& values) {
  const auto& known = attributes_of(op);
  values.integers.assign(known.size(), {});
  values.floats.assign(known.size(), {});
  for (size_t k = 0; k < known.size(); ++k) {
    const Attribute& wanted = known[k];
    const PluginField* found = nullptr;
    for (int32_t f = 0; fields && f < fields->nbFields; ++f)
      if (fields->fields[f].name && std::strcmp(fields->fields[f].name, wanted.name) == 0) found = &fields->fields[f];
    if (!found || !found->data || found->length < 1) {
      if (wanted.required) return std::string("attribute '") + wanted.name + "' is missing";
      const size_t count = wanted.list ? 2 : 1;
      if (wanted.integer) {
        const bool here = is_of_the_gpu(wanted);
        values.integers[k].assign(count, here ? capsedge_cuda_multiprocessors() : static_cast<int32_t>(wanted.otherwise));
      } else {
        values.floats[k].assign(count, static_cast<float>(wanted.otherwise));
      }
      continue;
    }
    // The parser hands ONNX integers on as INT32; a caller of its own may give INT64.
    const bool wide = wanted.integer && found->type == PluginFieldType::kINT64;
    const PluginFieldType type = wanted.integer ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32;
    if ((found->type != type && !wide) || (!wanted.list && found->length != 1))
      return std::string("attribute '") + wanted.name + "' has the wrong type or length";
    if (wide) {
      const int64_t* data = static_cast<const int64_t*>(found->data);
      for (int32_t v = 0; v < found->length; ++v) {
        if (data[v] != static_cast<int32_t>(data[v])) return std::string("attribute '") + wanted.name + "' is too large";
        values.integers[k].push_back(static_cast<int32_t>(data[v]));
      }
    } else if (wanted.integer) {
      const int32_t* data = static_cast<const int32_t*>(found->data);
      values.integers[k].assign(data, data + found->length);
    } else {
      const float* data = static_cast<const float*>(found->data);
      values.floats[k].assign(data, data + found->length);
    }
  }
  return check(op, values);
}

std::vector<PluginField> write_fields(Operator op, const Values& values) {
  const auto& known = attributes_of(op);
  std::vector<PluginField> fields;
  for (size_t k = 0; k < known.size(); ++k) {
    if (known[k].integer) {
      fields.emplace_back(known[k].name, values.integers[k].data(), PluginFieldType::kINT32,
                          static_cast<int32_t>(values.integers[k].size()));
    } else {
      fields.emplace_back(known[k].name, values.floats[k].data(), PluginFieldType::kFLOAT32,
                          static_cast<int32_t>(values.floats[k].size()));
    }
  }
  return fields;
}

std::vector<PluginField> announce_fields(Operator op) {
  std::vector<PluginField> fields;
  for (const Attribute& a : attributes_of(op)) {
    if (is_of_the_gpu(a)) continue;  // engines have it, nodes do not
    fields.emplace_back(a.name, nullptr, a.integer ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32, 1);
  }
  return fields;
}

std::string to_text(Operator op, const Values& values) {
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
