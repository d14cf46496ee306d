#include "operator.h"
#include "rows.h"

namespace capsedge {

namespace {

class Squash : public Operator {
 public:
  Squash(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        axis_(attributes.integer("axis")),
        epsilon_(attributes.number("epsilon")) {}

  void check(const std::vector<Shape>& inputs) const override {
    const auto rank = static_cast<int64_t>(inputs[0].size());
    expect(-rank <= axis_ && axis_ < rank, name(), "axis ", axis_, " of input 'x', whose shape is ", inputs[0]);
  }

  void run(const std::vector<Tensor>& inputs, const std::vector<Output>& results,
           const Threads& threads) const override {
    const Shape& shape = inputs[0].shape;
    const auto axis = static_cast<size_t>(axis_ < 0 ? axis_ + static_cast<int64_t>(shape.size()) : axis_);
    const int64_t size = shape[axis];
    int64_t inner = 1;
    for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    for_rows(name(), inputs[0], results[0], size * inner, level_, threads, [&](const float* x, float* y, int64_t rows) {
      if (inner == 1) {
        level_.squash_rows(x, y, rows, size, epsilon_);
      } else {
        level_.squash_planes(x, y, rows, size, inner, epsilon_);
      }
    });
  }

 private:
  const int64_t axis_;
  const float epsilon_;
};

}  // namespace

std::unique_ptr<Operator> make_squash(const Attributes& attributes, const Level& level) {
  return std::make_unique<Squash>(attributes, level);
}

}  // namespace capsedge
