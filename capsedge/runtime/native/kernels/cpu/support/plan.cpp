#include "plan.h"

namespace capsedge {

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int64_t packed_size(int64_t inner, int64_t columns, int64_t parents) {
  return inner * round_up(columns * parents, kStrip / 2);
}

WeightLayout window_layout(const Shape& weight) {
  return {weight[0] * weight[1] * weight[2], weight[3], weight[4], weight[5], weight[4] * weight[5], weight[5], 1};
}

static void dequantize(const int8_t* from, const float* scale, const WeightLayout& layout, float* to) {
  for (int64_t parent = 0; parent < layout.parents; ++parent)
    for (int64_t k = 0; k < layout.inner; ++k)
      for (int64_t column = 0; column < layout.columns; ++column) {
        const int64_t at = parent * layout.parent_stride + k * layout.inner_stride + column * layout.column_stride;
        to[at] = static_cast<float>(from[at]) * scale[parent * layout.columns + column];
      }
}

const float* one_weight(const Tensor& weight, int64_t number, const WeightLayout& layout, const Level& level,
                        float* wide) {
  const int64_t size = layout.size();
  if (weight.type == Type::kFloat) return static_cast<const float*>(weight.data) + number * size;
  if (is_int8(weight)) {
    dequantize(static_cast<const int8_t*>(weight.data) + number * size, weight.scale, layout, wide);
  } else {
    if (weight.type != Type::kFloat16) throw Error("input 'weight' is neither float nor float16");
    level.widen(static_cast<const uint16_t*>(weight.data) + number * size, wide, size);
  }
  return wide;
}

int64_t bundle_of(const WeightLayout& layout, const Level& level, bool shared, int64_t types) {
  const int64_t width = level.width;
  if (4 * layout.parents > 3 * round_up(layout.parents, width) || layout.parents > width) return 1;
  // The number of shared weights must be a multiple of the bundle.
  if (shared ? types % width != 0 : layout.numbers < 4 * width) return 1;
  return width;
}

int64_t bundle_size(const WeightLayout& layout, int64_t bundle) {
  return layout.size() * bundle;
}

Buffer pack_bundles(const Tensor& weight, const WeightLayout& layout, const Level& level, int64_t bundle) {
  const int64_t bundles = (layout.numbers + bundle - 1) / bundle;
  Buffer all(bundles * bundle_size(layout, bundle)), wide(layout.size());
  std::fill(all.data(), all.data() + all.size(), 0.0f);
  for (int64_t number = 0; number < layout.numbers; ++number) {
    const float* from = one_weight(weight, number, layout, level, wide.data());
    float* to = all.data() + number / bundle * bundle_size(layout, bundle) + number % bundle;
    for (int64_t column = 0; column < layout.columns; ++column)
      for (int64_t parent = 0; parent < layout.parents; ++parent)
        for (int64_t k = 0; k < layout.inner; ++k, to += bundle)
          *to = from[parent * layout.parent_stride + k * layout.inner_stride + column * layout.column_stride];
  }
  return all;
}

Buffer pack(const Tensor& weight, const WeightLayout& layout, const Level& level, const Threads* threads) {
  const int64_t packed = packed_size(layout.inner, layout.columns, layout.parents);
  Buffer all(layout.numbers * packed);
  parallel_for(threads, layout.numbers, [&](int64_t number) {
    const float* from = one_weight(weight, number, layout, level, thread_scratch(layout.size()));
    float* to = all.data() + number * packed;
    for (int64_t at = 0; at < layout.lanes(); at += kStrip) to = pack_strip(from, layout, at, to);
  });
  return all;
}

Shape attention_output(const char* op, const Shape& pose, const Shape& weight, const Shape& scale, bool matrix_pose,
                       const Shape& strides) {
  const int64_t size = matrix_pose ? pose[4] : weight[5];
  const int64_t inner = matrix_pose ? matrix_side(op, size) : pose[4], columns = matrix_pose ? inner : size;
  expect(weight[4] == inner && weight[5] == columns, op, "input 'weight' has shape ", weight, ": wanted matrices of ",
         inner, "x", columns);
  expect(scale[0] == size, op, "input 'scale' has shape ", scale, ": wanted [", size, "]");
  const Grid grid = output_grid(op, pose, weight[0], weight[1], strides);
  return {pose[0], grid.height, grid.width, weight[3], size};
}

std::vector<Child> children_of(const Window& window) {
  std::vector<Child> children;
  children.reserve(static_cast<size_t>(window.height * window.width * window.types));
  for (int64_t row = 0; row < window.height; ++row)
    for (int64_t column = 0; column < window.width; ++column)
      for (int64_t type = 0; type < window.types; ++type) {
        const int64_t number = window.shared ? type : static_cast<int64_t>(children.size());
        children.push_back({static_cast<int32_t>((row * window.grid_width + column) * window.types + type),
                            static_cast<int32_t>(number), static_cast<int32_t>(row),
                            static_cast<int32_t>(column)});
      }
  return children;
}

Votes plan_votes(const Level& level, const std::vector<Child>& children, const float* weight, int64_t pose_size,
                 int64_t rows, int64_t inner, int64_t columns, int64_t parents, int64_t units) {
  Votes votes{};
  votes.children = children.data();
  votes.weight = weight;
  votes.weight_size = packed_size(inner, columns, parents);
  votes.pose_size = static_cast<int>(pose_size);
  votes.rows = static_cast<int>(rows);
  votes.inner = static_cast<int>(inner);
  votes.columns = static_cast<int>(columns);
  votes.pose_elements = static_cast<int>(rows * columns);
  votes.parents = static_cast<int>(parents);
  votes.lanes = static_cast<int>(round_up(parents, level.width));
  // Reading or writing the last parents in a whole vector must not reach the next child's votes, which another
  // thread may be writing when votes are kept.
  const int64_t overhang = parents % level.width ? level.width : 0;
  votes.tile_stride = round_up(units * rows * columns * parents + overhang, kSlack);
  votes.bundle = 1;
  return votes;
}

int64_t scratch_floats(const Votes& votes) {
  if (votes.of_all) return kChunk * (votes.parents + votes.tile_stride) + votes.parents * votes.tile_stride / 2;
  return kBlock * (static_cast<int64_t>(votes.lanes) + votes.tile_stride);
}

void to_parents(const Votes& votes, const float* from, float* to) {
  for (int64_t m = 0; m < votes.parents; ++m)
    for (int64_t h = 0; h < votes.pose_elements; ++h) *to++ = from[h * votes.lanes + m];
}

void from_parents(const Votes& votes, const float* from, float* to) {
  for (int64_t h = 0; h < votes.pose_elements; ++h)
    for (int64_t m = 0; m < votes.lanes; ++m)
      *to++ = m < votes.parents ? from[m * votes.pose_elements + h] : 0.0f;
}

}  // namespace capsedge
