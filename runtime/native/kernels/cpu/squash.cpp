#include <algorithm>

#include "operator.h"

namespace capsedge {

namespace {

constexpr char kName[] = "Squash";

class Squash : public Operator {
 public:
  Squash(const Attributes& attributes, const Level& level)
      : Operator(level),
        axis_(attributes.integer(kName, "axis", -1)),
        epsilon_(attributes.positive(kName, "epsilon", 1e-8f)) {}

  std::vector<Shape> outputs(const std::vector<Shape>& inputs) const override {
    expect(inputs.size() == 1, kName, "wanted one input");
    const auto rank = static_cast<int64_t>(inputs[0].size());
    expect(-rank <= axis_ && axis_ < rank, kName, "axis ", axis_, " of input 'x', whose shape is ", inputs[0]);
    return {inputs[0]};
  }

  void constant(size_t, const Tensor&) override {}

  void run(const std::vector<Tensor>& inputs, const std::vector<Output>& results,
           const Threads& threads) const override {
    const Tensor& x = inputs[0];
    const Shape& shape = x.shape;
    const auto axis = static_cast<size_t>(axis_ < 0 ? axis_ + static_cast<int64_t>(shape.size()) : axis_);
    int64_t outer = 1, inner = 1;
    for (size_t i = 0; i < axis; ++i) outer *= shape[i];
    for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    const int64_t size = shape[axis], row = size * inner;
    if (outer * row == 0) return;
    // Parts of about 64 KB, and whole vectors of rows in each.
    const int64_t rows = round_rows(std::max<int64_t>(1, 16384 / row));
    parallel_for(threads, (outer + rows - 1) / rows, [&](int64_t part) {
      const int64_t first = part * rows, count = std::min(rows, outer - first);
      const int64_t at = first * row, floats = count * row;
      if (x.type == Type::kFloat) {
        squash(static_cast<const float*>(x.data) + at, static_cast<float*>(results[0].data) + at, count, size, inner);
        return;
      }
      float* wide = thread_scratch(floats);
      level_.widen(static_cast<const uint16_t*>(x.data) + at, wide, floats);
      squash(wide, wide, count, size, inner);
      level_.narrow(wide, static_cast<uint16_t*>(results[0].data) + at, floats);
    });
  }

 private:
  static int64_t round_rows(int64_t rows) { return (rows + 15) / 16 * 16; }

  void squash(const float* x, float* y, int64_t rows, int64_t size, int64_t inner) const {
    if (inner == 1) {
      level_.squash_rows(x, y, rows, size, epsilon_);
    } else {
      level_.squash_planes(x, y, rows, size, inner, epsilon_);
    }
  }

  const int64_t axis_;
  const float epsilon_;
};

}  // namespace

std::unique_ptr<Operator> make_squash(const Attributes& attributes, const Level& level) {
  return std::make_unique<Squash>(attributes, level);
}

}  // namespace capsedge
