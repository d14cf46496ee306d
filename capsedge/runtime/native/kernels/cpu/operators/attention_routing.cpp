#include <algorithm>

#include "operator.h"
#include "router.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

using namespace places::AttentionRouting;

class AttentionRouting : public Operator {
 public:
  AttentionRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        strides_(attributes.integers("strides")),
        matrix_(attributes.flag("matrix_pose")),
        scale_(attributes.number("agreement_scale")),
        epsilon_(attributes.number("epsilon")) {}

  void check(const std::vector<Shape>& in) const override {
    Shape parent = attention_output(name(), in[kPose], in[kWeight], in[kScale], matrix_, strides_);
    if (in[kParent][0] == 1) parent[0] = 1;
    expect(in[kParent] == parent, name(), "input 'parent' has shape ", in[kParent], ": wanted ", parent);
  }

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kWeight) weight_ = pack(tensor, window_layout(tensor.shape), level_, nullptr);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kPose].shape;
    const Shape& weight_shape = in[kWeight].shape;
    const Shape& parent_shape = in[kParent].shape;
    if (shape[0] == 0) return;
    const int64_t size = shape[4], parents = weight_shape[3], inner = weight_shape[4], columns = weight_shape[5];
    const Level& level = level_for(level_, parents);
    const int64_t rows = matrix_ ? inner : 1, grid_height = parent_shape[1], grid_width = parent_shape[2];
    const Floats pose(in[kPose], level), parent(in[kParent], level);
    const Floats scale(in[kScale], level), bias(in[kBias], level);
    std::optional<Buffer> own;
    const Buffer& weight = made_once(
        weight_, own, [&] { return pack(in[kWeight], window_layout(weight_shape), level, &threads); });
    FloatOutput result(results[0], level);

    const std::vector<Child> places =
        children_of({shape[1], shape[2], shape[3], weight_shape[0], weight_shape[1], false});
    // A matrix pose has enough rows to share one reading of the weights. Vectors are processed four positions at a
    // time, along a row of the grid, or across the batch if the grid is one position.
    const bool one_position = grid_height * grid_width == 1;
    const int64_t along = one_position ? shape[0] : grid_width;
    const int64_t units = rows == 1 && columns * parents <= 512 ? std::min<int64_t>(along, 4) : 1;
    const int64_t cell = shape[3] * size, image = shape[1] * shape[2] * cell;
    Routing routing{};
    routing.votes = plan_votes(level, places, weight.data(), size, rows, inner, columns, parents, units);
    routing.children = static_cast<int64_t>(places.size());
    routing.weight_floats = elements(weight_shape);
    routing.passes = 1;
    routing.unit_stride = one_position ? image : strides_[1] * cell;
    const int64_t lines = one_position ? 1 : shape[0] * grid_height;
    for (int64_t line = 0; line < lines; ++line) {
      const float* first =
          pose.data() + (line / grid_height) * image + (line % grid_height) * strides_[0] * shape[2] * cell;
      for (int64_t u = 0; u < along; u += units)
        routing.groups.push_back(
            {first + u * routing.unit_stride, line * along + u, static_cast<int>(std::min(units, along - u))});
    }
    routing.scale = scale_;
    const Votes& votes = routing.votes;
    const int64_t unit_size = parents * votes.pose_elements;
    const int64_t parent_units = parent_shape[0] * grid_height * grid_width;
    routing.start = [&](int64_t unit, float* query) {
      from_parents(votes, parent.data() + unit % parent_units * unit_size, query);
    };
    routing.finish = [&](int64_t unit, bool, float* sum, float*) {
      level.finish_norm(sum, scale.data(), bias.data(), votes.pose_elements, votes.lanes, epsilon_, sum);
      to_parents(votes, sum, result.data() + unit * unit_size);
    };
    route(routing, level, threads);
    result.store();
  }

 private:
  const Shape strides_;
  const bool matrix_;
  const float scale_;
  const float epsilon_;
  std::optional<Buffer> weight_;
};

}  // namespace

std::unique_ptr<Operator> make_attention_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<AttentionRouting>(attributes, level);
}

}  // namespace capsedge
