// Routing with INT8 weights: the float operator, given a weight that carries its scale.

#include <algorithm>
#include <optional>

#include "operator.h"

namespace capsedge {

namespace {

// Axes of the weight that also belong to its scale, [parents][columns].
struct ScaleAxes {
  size_t parents, columns;
};
ScaleAxes scale_axes(const OperatorSpec& quantized, size_t weight_at) {
  const auto& weight = quantized.inputs[weight_at].shape;
  const auto& scale = quantized.inputs[weight_at + 1].shape;
  const auto axis_of = [&](std::string_view name) {
    return static_cast<size_t>(std::find(weight.begin(), weight.end(), name) - weight.begin());
  };
  return {axis_of(scale[0]), axis_of(scale[1])};
}

// Messages of the float operator begin with its name.
template <typename F>
auto said_as_quantized(F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error("Quantized" + std::string(error.what()));
  }
}

class QuantizedRouting : public Operator {
 public:
  QuantizedRouting(const OperatorSpec& routing, const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        weight_at_(spec_.input("weight")),
        axes_(scale_axes(spec_, weight_at_)),
        routing_(said_as_quantized([&] { return make_operator(routing.name, attributes.source(), level); })) {}

  void check(const std::vector<Shape>& in) const override {
    said_as_quantized([&] { routing_->outputs(without_scale(in)); });
  }

  void keep(size_t index, const Tensor& tensor) override {
    if (index == weight_at_) {
      expect_type(name(), "weight", tensor, Type::kInt8);
      weight_ = copy_of<int8_t>(tensor);
      pack_weight();
    } else if (index == weight_at_ + 1) {
      expect_type(name(), "weight_scale", tensor, Type::kFloat);
      scale_ = copy_of<float>(tensor);
      pack_weight();
    } else {
      routing_->constant(index < weight_at_ ? index : index - 1, tensor);
    }
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Tensor& scale = in[weight_at_ + 1];
    expect_type(name(), "weight", in[weight_at_], Type::kInt8);
    expect_type(name(), "weight_scale", scale, Type::kFloat);
    std::vector<Tensor> rest = without_scale(in);
    rest[weight_at_].scale = static_cast<const float*>(scale.data);
    said_as_quantized([&] { routing_->run(rest, results, threads); });
  }

 private:
  template <typename T>
  struct Copy {
    Shape shape;
    std::vector<T> values;
  };
  template <typename T>
  static std::optional<Copy<T>> copy_of(const Tensor& tensor) {
    const T* from = static_cast<const T*>(tensor.data);
    return Copy<T>{tensor.shape, {from, from + elements(tensor.shape)}};
  }

  // The float operator's inputs.
  template <typename X>
  std::vector<X> without_scale(std::vector<X> inputs) const {
    inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(weight_at_) + 1);
    return inputs;
  }

  // Called once the weight and its scale are known.
  void pack_weight() {
    if (!weight_ || !scale_) return;
    const Shape& shape = weight_->shape;
    if (elements(shape) == 0 ||
        scale_->shape != Shape{shape[axes_.parents], shape[axes_.columns]})
      return;  // outputs() says what is wrong
    routing_->constant(weight_at_, {weight_->values.data(), shape, Type::kInt8, scale_->values.data()});
    weight_.reset();
  }

  const size_t weight_at_;
  const ScaleAxes axes_;
  const std::unique_ptr<Operator> routing_;
  std::optional<Copy<int8_t>> weight_;
  std::optional<Copy<float>> scale_;
};

}  // namespace

std::unique_ptr<Operator> make_quantized_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<QuantizedRouting>(*find_operator(attributes.spec().quantizes), attributes, level);
}

}  // namespace capsedge
