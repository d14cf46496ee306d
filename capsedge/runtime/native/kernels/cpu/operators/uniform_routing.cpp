#include <algorithm>

#include "operator.h"
#include "support/plan.h"

namespace capsedge {

namespace {

using namespace places::UniformRouting;

// weight[Kh][Kw][C][M][K][L] / M as the kernel reads it: strips of lanes [L][M], each with a row for every child and
// inner index.
Buffer pack_uniform(const Tensor& weight, const Level& level) {
  const WeightLayout layout = window_layout(weight.shape);
  const float share = 1.0f / static_cast<float>(layout.parents);
  Buffer packed(layout.numbers * packed_size(layout.inner, layout.columns, layout.parents)), wide(layout.size());
  for (int64_t child = 0; child < layout.numbers; ++child) {
    const float* from = one_weight(weight, child, layout, level, wide.data());
    for (int64_t at = 0; at < layout.lanes(); at += kStrip) {
      float* to = packed.data() + (layout.numbers * at + child * strip_width(layout.lanes() - at)) * layout.inner;
      for (float* end = pack_strip(from, layout, at, to); to < end; ++to) *to *= share;
    }
  }
  return packed;
}

class UniformRouting : public Operator {
 public:
  UniformRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        strides_(attributes.integers("strides")),
        matrix_(attributes.flag("matrix_pose")),
        epsilon_(attributes.number("epsilon")) {}

  void check(const std::vector<Shape>& in) const override {
    attention_output(name(), in[kPose], in[kWeight], in[kScale], matrix_, strides_);
  }

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kWeight) weight_ = pack_uniform(tensor, level_);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kPose].shape;
    const Shape& weight_shape = in[kWeight].shape;
    const Shape& grid = results[0].shape;
    const int64_t inner = weight_shape[4], rows = matrix_ ? inner : 1, parents = grid[3], size = grid[4];
    const Floats pose(in[kPose], level_), scale(in[kScale], level_), bias(in[kBias], level_);
    std::optional<Buffer> own;
    const Buffer& weight = made_once(weight_, own, [&] { return pack_uniform(in[kWeight], level_); });
    FloatOutput result(results[0], level_);

    LinearPass pass{};
    pass.weight = weight.data();
    pass.lines = static_cast<int>(weight_shape[0]);
    pass.line_children = static_cast<int>(weight_shape[1] * weight_shape[2]);
    pass.line_stride = shape[2] * shape[3] * shape[4];
    pass.pose_size = shape[4];
    pass.inner = static_cast<int>(inner);
    pass.lanes = weight_shape[5] * parents;
    pass.out_stride = round_up(pass.lanes, kStrip / 2);
    Votes layout{};
    layout.parents = static_cast<int>(parents);
    layout.pose_elements = static_cast<int>(size);
    layout.lanes = static_cast<int>(round_up(parents, level_.width));

    const int64_t positions = grid[0] * grid[1] * grid[2], cell = shape[3] * shape[4];
    const int64_t units = std::max<int64_t>(1, level_.linear_rows / rows);
    parallel_for(threads, (positions + units - 1) / units, [&](int64_t task) {
      const int64_t first = task * units, count = std::min(units, positions - first);
      const int64_t sums_size = count * rows * pass.out_stride, statistics = size * layout.lanes;
      float* sums = thread_scratch(sums_size + statistics);
      float* spread = sums + sums_size;
      std::vector<const float*> from(static_cast<size_t>(count * rows));
      for (int64_t u = 0; u < count; ++u) {
        const int64_t at = first + u, x = at % grid[2], y = at / grid[2] % grid[1], n = at / (grid[1] * grid[2]);
        const float* window =
            pose.data() + ((n * shape[1] + y * strides_[0]) * shape[2] + x * strides_[1]) * cell;
        for (int64_t r = 0; r < rows; ++r) from[static_cast<size_t>(u * rows + r)] = window + r * inner;
      }
      level_.linear(pass, from.data(), static_cast<int>(count * rows), sums);
      for (int64_t u = 0; u < count; ++u) {
        // Converts [row][column][parent] to [element][lanes], the layout of the statistics.
        for (int64_t h = 0; h < size; ++h) {
          const float* row = sums + (u * rows + h / weight_shape[5]) * pass.out_stride;
          float* to = std::copy_n(row + h % weight_shape[5] * parents, parents, spread + h * layout.lanes);
          std::fill(to, spread + (h + 1) * layout.lanes, 0.0f);
        }
        level_.finish_norm(spread, scale.data(), bias.data(), layout.pose_elements, layout.lanes, epsilon_, spread);
        to_parents(layout, spread, result.data() + (first + u) * parents * size);
      }
    });
    result.store();
  }

 private:
  const Shape strides_;
  const bool matrix_;
  const float epsilon_;
  std::optional<Buffer> weight_;
};

}  // namespace

std::unique_ptr<Operator> make_uniform_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<UniformRouting>(attributes, level);
}

}  // namespace capsedge
