#include "operator.h"

#include <algorithm>

namespace capsedge {

namespace {

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
  check(inputs);
  return output_shapes_.of(inputs);
}

void Operator::constant(size_t index, const Tensor& tensor) {
  // outputs() says what is wrong with any other.
  if (index < spec_.inputs.size() && tensor.shape.size() == spec_.inputs[index].shape.size()) keep(index, tensor);
}

std::unique_ptr<Operator> make_operator(const std::string& name, const AttributeSource& attributes,
                                        const Level& level) {
  const OperatorSpec* const spec = find_operator(name);
  if (spec == nullptr) throw Error("no operator '" + name + "': there are " + all_names());
  return kMakers[static_cast<size_t>(id_of(*spec))](Attributes(*spec, attributes), level);
}

}  // namespace capsedge
