// Routing with INT8 weights: the float operator, given a weight that carries its scale.

#include <cstring>
#include <optional>

#include "operator.h"

namespace capsedge {

namespace {

struct Kind {
  const char* name;  // of the float operator
  size_t inputs;     // of it
  size_t weight;     // which of them
  size_t parents_axis, columns_axis;
};
constexpr Kind kKinds[] = {
    {"DynamicRouting", 4, 1, 1, 2}, {"EMRouting", 5, 2, 3, 5}, {"AttentionRouting", 5, 2, 3, 5},
    {"UniformRouting", 4, 1, 3, 5}};

// The float operator's sentences begin with its name.
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
  QuantizedRouting(const Kind& kind, const Attributes& attributes, const Level& level)
      : Operator(level),
        kind_(kind),
        name_("Quantized" + std::string(kind.name)),
        routing_(said_as_quantized([&] { return make_operator(kind.name, attributes, level); })) {}

  std::vector<Shape> outputs(const std::vector<Shape>& in) const override {
    expect(in.size() == kind_.inputs + 1, name_.c_str(), "wanted ", static_cast<int64_t>(kind_.inputs + 1), " inputs");
    std::vector<Shape> rest = in;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(kind_.weight) + 1);
    const auto found = said_as_quantized([&] { return routing_->outputs(rest); });
    const Shape& weight = in[kind_.weight];
    expect_shape(name_.c_str(), "weight_scale", in[kind_.weight + 1],
                 {weight[kind_.parents_axis], weight[kind_.columns_axis]});
    return found;
  }

  void constant(size_t index, const Tensor& tensor) override {
    if (index < kind_.weight) {
      routing_->constant(index, tensor);
    } else if (index > kind_.weight + 1) {
      routing_->constant(index - 1, tensor);
    } else {
      // Packed when both are known.
      if (index == kind_.weight) {
        expect_type(name_.c_str(), "weight", tensor, Type::kInt8);
        weight_ = copy_of<int8_t>(tensor);
      } else {
        expect_type(name_.c_str(), "weight_scale", tensor, Type::kFloat);
        scale_ = copy_of<float>(tensor);
      }
      if (!weight_ || !scale_) return;
      const Shape& shape = weight_->shape;
      if (shape.size() <= kind_.columns_axis || elements(shape) == 0 ||
          scale_->shape != Shape{shape[kind_.parents_axis], shape[kind_.columns_axis]})
        return;  // outputs() says what is wrong
      routing_->constant(kind_.weight, {weight_->values.data(), shape, Type::kInt8, scale_->values.data()});
      weight_.reset();
    }
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Tensor& scale = in[kind_.weight + 1];
    expect_type(name_.c_str(), "weight", in[kind_.weight], Type::kInt8);
    expect_type(name_.c_str(), "weight_scale", scale, Type::kFloat);
    std::vector<Tensor> rest = in;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(kind_.weight) + 1);
    rest[kind_.weight].scale = static_cast<const float*>(scale.data);
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

  const Kind& kind_;
  const std::string name_;
  const std::unique_ptr<Operator> routing_;
  std::optional<Copy<int8_t>> weight_;
  std::optional<Copy<float>> scale_;
};

}  // namespace

// Null if there is no such operator.
std::unique_ptr<Operator> make_quantized_routing(const std::string& name, const Attributes& attributes,
                                                 const Level& level) {
  for (const Kind& kind : kKinds)
    if (name == "Quantized" + std::string(kind.name))
      return std::make_unique<QuantizedRouting>(kind, attributes, level);
  return nullptr;
}

}  // namespace capsedge
