#include "operator.h"

namespace capsedge {

namespace {

template <typename T>
std::vector<T> single(const Attributes& attributes, const char* op, const char* name) {
  std::vector<T> values;
  if (attributes.find(name, values))
    expect(values.size() == 1, op, "attribute '", name, "' has ", static_cast<int64_t>(values.size()),
           " values: wanted one");
  return values;
}

}  // namespace

int64_t Attributes::integer(const char* op, const char* name, int64_t otherwise) const {
  const auto values = single<int64_t>(*this, op, name);
  return values.empty() ? otherwise : values[0];
}

bool Attributes::flag(const char* op, const char* name, bool otherwise) const {
  const int64_t value = integer(op, name, otherwise);
  expect(value == 0 || value == 1, op, "attribute '", name, "' is ", value, ": wanted 0 or 1");
  return value == 1;
}

float Attributes::positive(const char* op, const char* name, float otherwise) const {
  const auto values = single<float>(*this, op, name);
  const float value = values.empty() ? otherwise : values[0];
  expect(value > 0, op, "attribute '", name, "' is ", value, ": wanted a number above zero");
  return value;
}

float Attributes::number(const char* op, const char* name) const {
  const auto values = single<float>(*this, op, name);
  expect(!values.empty(), op, "attribute '", name, "' is missing");
  return values[0];
}

Shape Attributes::strides(const char* op) const {
  Shape values;
  if (!find("strides", values)) return {1, 1};
  expect(values.size() == 2 && values[0] >= 1 && values[1] >= 1, op,
         "attribute 'strides' is ", values, ": wanted two numbers of 1 or more");
  return values;
}

std::unique_ptr<Operator> make_operator(const std::string& name, const Attributes& attributes, const Level& level) {
  if (name == "Squash") return make_squash(attributes, level);
  if (name == "DynamicRouting") return make_dynamic_routing(attributes, level);
  if (name == "EMRouting") return make_em_routing(attributes, level);
  if (name == "AttentionRouting") return make_attention_routing(attributes, level);
  if (name == "UniformRouting") return make_uniform_routing(attributes, level);
  if (name == "PoseNormalization") return make_pose_normalization(attributes, level);
  if (name == "QuantizedConv") return make_quantized_conv(attributes, level);
  if (name.rfind("Quantized", 0) == 0) {
    if (auto made = make_quantized_routing(name, attributes, level)) return made;
  }
  throw Error("no operator '" + name + "': there are Squash, DynamicRouting, EMRouting, AttentionRouting, " +
              "UniformRouting, PoseNormalization, QuantizedConv, QuantizedDynamicRouting, QuantizedEMRouting, " +
              "QuantizedAttentionRouting, QuantizedUniformRouting");
}

}  // namespace capsedge
