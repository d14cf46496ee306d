#include "operators.h"

#include <stdexcept>
#include <string>

namespace capsedge {

namespace {

constexpr AttributeSpec integer(const char* name, int64_t otherwise) {
  return {name, AttributeType::kInt, false, {otherwise}, 0};
}
constexpr AttributeSpec integers(const char* name, std::initializer_list<int64_t> otherwise) {
  return {name, AttributeType::kInts, false, otherwise, 0};
}
constexpr AttributeSpec number(const char* name, float otherwise) {
  return {name, AttributeType::kFloat, false, {}, otherwise};
}
constexpr AttributeSpec required(const char* name, AttributeType type) { return {name, type, true, {}, 0}; }

constexpr Parameter optional(const char* name) { return {name, 'T', true}; }

constexpr AttributeSpec kStrides = integers("strides", {1, 1});

constexpr OperatorSpec kSquash = {
    "Squash",
    {{"x"}},
    {{"y"}},
    {integer("axis", -1), number("epsilon", 1e-8f)},
};
constexpr FixedList<AttributeSpec, 8> kAgreement = {
    integer("iterations", 3),  integer("leaky", 0),       integer("over_children", 0),     integer("replace", 0),
    integer("normalize", 0),   integer("elementwise", 0), number("agreement_scale", 1.0f), number("epsilon", 1e-8f),
};
constexpr OperatorSpec kDynamicRouting = {
    "DynamicRouting",
    {{"u"}, {"weight"}, {"log_prior"}, {"bias"}, optional("vote_bias")},
    {{"v"}},
    kAgreement,
};
constexpr OperatorSpec kVoteRouting = {
    "VoteRouting",
    {{"votes"}, {"log_prior"}, {"bias"}},
    {{"v"}},
    kAgreement,
};
constexpr OperatorSpec kEmRouting = {
    "EMRouting",
    {{"pose"}, {"a"}, {"weight"}, {"beta_u"}, {"beta_a"}, optional("coordinates")},
    {{"pose_out"}, {"a_out"}},
    {required("iterations", AttributeType::kInt), kStrides, required("inverse_temperatures", AttributeType::kFloats),
     integer("coordinate_addition", 0), integer("shared", 0), integer("normalize_activations", 0),
     integer("ones_first", 0), number("epsilon", 1e-6f)},
};
constexpr OperatorSpec kAttentionRouting = {
    "AttentionRouting",
    {{"pose"}, {"parent"}, {"weight"}, {"scale"}, {"bias"}},
    {{"pose_out"}},
    {kStrides, integer("matrix_pose", 1), required("agreement_scale", AttributeType::kFloat), number("epsilon", 1e-5f)},
};
constexpr OperatorSpec kSelfAttentionRouting = {
    "SelfAttentionRouting",
    {{"u"}, {"weight"}, {"bias"}},
    {{"v"}},
    {number("epsilon", 1e-20f)},
};
constexpr OperatorSpec kUniformRouting = {
    "UniformRouting",
    {{"pose"}, {"weight"}, {"scale"}, {"bias"}},
    {{"pose_out"}},
    {kStrides, integer("matrix_pose", 1), number("epsilon", 1e-5f)},
};
constexpr OperatorSpec kPoseNormalization = {
    "PoseNormalization",
    {{"x"}, {"scale"}, {"bias"}},
    {{"y"}},
    {number("epsilon", 1e-5f)},
};
constexpr OperatorSpec kQuantizedConv = {
    "QuantizedConv",
    {{"x", 'B'},
     {"x_scale", 'f'},
     {"x_zero_point", 'B'},
     {"weight", 'b'},
     {"weight_scale", 'f'},
     {"weight_zero_point", 'b'},
     {"y_scale", 'f'},
     {"y_zero_point", 'B'},
     {"bias", 'i'}},
    {{"y", 'B'}},
    {kStrides, integers("pads", {0, 0, 0, 0}), integers("dilations", {1, 1})},
};

// The operator with an INT8 weight, whose scale is the input after it.
constexpr OperatorSpec quantized(const char* name, const OperatorSpec& plain) {
  OperatorSpec made = plain;
  made.name = name;
  made.quantizes = plain.name;
  made.inputs = {};
  for (const Parameter& input : plain.inputs) {
    const bool weight = std::string_view(input.name) == "weight";
    made.inputs.add({input.name, weight ? 'b' : input.type, input.optional});
    if (weight) made.inputs.add({"weight_scale", 'f'});
  }
  return made;
}

}  // namespace

constexpr std::array<OperatorSpec, kOperatorCount> kOperators = {
    kSquash,
    kDynamicRouting,
    kVoteRouting,
    kEmRouting,
    kAttentionRouting,
    kSelfAttentionRouting,
    kUniformRouting,
    kPoseNormalization,
    quantized("QuantizedDynamicRouting", kDynamicRouting),
    quantized("QuantizedEMRouting", kEmRouting),
    quantized("QuantizedAttentionRouting", kAttentionRouting),
    quantized("QuantizedSelfAttentionRouting", kSelfAttentionRouting),
    quantized("QuantizedUniformRouting", kUniformRouting),
    kQuantizedConv,
};

const OperatorSpec* find_operator(std::string_view name) {
  for (const OperatorSpec& spec : kOperators)
    if (name == spec.name) return &spec;
  return nullptr;
}

size_t OperatorSpec::required_inputs() const {
  size_t count = 0;
  for (const Parameter& input : inputs) count += !input.optional;
  return count;
}

std::string OperatorSpec::wanted_inputs() const {
  std::string text = std::to_string(required_inputs());
  for (size_t count = required_inputs() + 1; count <= inputs.size(); ++count) text += " or " + std::to_string(count);
  return text;
}

size_t OperatorSpec::input(std::string_view wanted) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (wanted == inputs[i].name) return i;
  throw std::logic_error(std::string(name) + " has no input '" + std::string(wanted) + "'");
}

const AttributeSpec& OperatorSpec::attribute(std::string_view wanted) const {
  for (const AttributeSpec& known : attributes)
    if (wanted == known.name) return known;
  throw std::logic_error(std::string(name) + " has no attribute '" + std::string(wanted) + "'");
}

}  // namespace capsedge
