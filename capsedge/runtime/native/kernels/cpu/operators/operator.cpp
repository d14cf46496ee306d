#include "operator.h"

#include <algorithm>

namespace capsedge {

namespace {

using Make = std::unique_ptr<Operator> (*)(const Attributes&, const Level&);

// Operators with INT8 weights wrap these.
constexpr struct {
  OperatorId id;
  Make make;
} kMakers[] = {
    {OperatorId::kSquash, make_squash},
    {OperatorId::kDynamicRouting, make_dynamic_routing},
    {OperatorId::kVoteRouting, make_vote_routing},
    {OperatorId::kEMRouting, make_em_routing},
    {OperatorId::kAttentionRouting, make_attention_routing},
    {OperatorId::kSelfAttentionRouting, make_self_attention_routing},
    {OperatorId::kUniformRouting, make_uniform_routing},
    {OperatorId::kPoseNormalization, make_pose_normalization},
    {OperatorId::kQuantizedConv, make_quantized_conv},
};

Make maker_of(const OperatorSpec& spec) {
  if (spec.quantizes) return make_quantized_routing;
  for (const auto& [id, make] : kMakers)
    if (id == id_of(spec)) return make;
  throw Error(std::string(spec.name) + ": there is no CPU kernel");
}

std::string all_names() {
  std::string names;
  for (const OperatorSpec& spec : kOperators) names += (names.empty() ? "" : ", ") + std::string(spec.name);
  return names;
}

}  // namespace

std::vector<Shape> Operator::outputs(const std::vector<Shape>& inputs) const {
  if (!spec_.takes(inputs.size()))
    throw Error(std::string(name()) + ": " + std::to_string(inputs.size()) + " inputs: wanted " + spec_.wanted_inputs());
  std::array<ShapeView, kMostInputs> shapes;
  std::transform(inputs.begin(), inputs.end(), shapes.begin(),
                 [](const Shape& shape) { return ShapeView{shape.data(), shape.size()}; });
  const std::string wrong = input_shapes_.wrong(shapes.data(), inputs.size());
  if (!wrong.empty()) throw Error(std::string(name()) + ": " + wrong);
  return output_shapes(inputs);
}

void Operator::constant(size_t index, const Tensor& tensor) {
  // outputs() says what is wrong with any other.
  if (index < spec_.inputs.size() && tensor.shape.size() == spec_.inputs[index].shape.size()) keep(index, tensor);
}

std::unique_ptr<Operator> make_operator(const std::string& name, const AttributeSource& attributes,
                                        const Level& level) {
  const OperatorSpec* const spec = find_operator(name);
  if (spec == nullptr) throw Error("no operator '" + name + "': there are " + all_names());
  return maker_of(*spec)(Attributes(*spec, attributes), level);
}

}  // namespace capsedge
