// Shared by all kinds of routing: packed weights, windows, the shape of a vote.
#pragma once

#include <algorithm>

#include "parallel.h"
#include "tensor.h"

namespace capsedge {

// Children are processed in fixed parts, whose sums are added in order, so results depend neither on the number of
// threads nor on the batch.
constexpr int kChunk = 64;

// Layout of the elements of weight[number][parent][inner][column], with the last three in some order.
struct WeightLayout {
  int64_t numbers, parents, inner, columns;
  int64_t parent_stride, inner_stride, column_stride;

  int64_t lanes() const { return columns * parents; }
  int64_t size() const { return lanes() * inner; }  // of one weight
};
// Layout of a weight for windows, [Kh][Kw][C][M][K][L].
WeightLayout window_layout(const Shape& weight);

// Floats of one packed weight.
int64_t packed_size(int64_t inner, int64_t columns, int64_t parents);

inline bool is_int8(const Tensor& weight) { return weight.type == Type::kInt8 && weight.scale; }

// One weight as floats: in place, or converted into `wide`.
const float* one_weight(const Tensor& weight, int64_t number, const WeightLayout& layout, const Level& level,
                        float* wide);

// Width of the strip that begins `left` lanes before the end.
inline int64_t strip_width(int64_t left) { return left > kStrip / 2 ? kStrip : kStrip / 2; }

// Writes the strip of one weight that begins at lane `at`, one row per inner index; returns its end.
template <typename T>
T* pack_strip(const T* from, WeightLayout layout, int64_t at, T* to) {
  const int64_t width = strip_width(layout.lanes() - at), filled = std::min(width, layout.lanes() - at);
  const int64_t first_column = at / layout.parents, first_parent = at % layout.parents;
  for (int64_t k = 0; k < layout.inner; ++k) {
    int64_t column = first_column, parent = first_parent;
    for (int64_t i = 0; i < filled; ++i) {
      *to++ = from[parent * layout.parent_stride + k * layout.inner_stride + column * layout.column_stride];
      if (++parent == layout.parents) parent = 0, ++column;
    }
    to = std::fill_n(to, width - filled, T{});
  }
  return to;
}

// Packs weights as the kernels read them: as floats, in strips over [column][parent] (level.h).
Buffer pack(const Tensor& weight, const WeightLayout& layout, const Level& level, const Threads* threads);

// Number of children placed side by side in a vector if the parents fill less than three quarters of it; otherwise, or
// with too few children, 1.
int64_t bundle_of(const WeightLayout& layout, const Level& level, bool shared, int64_t types);

// Packs `bundle` consecutive weights together: [column][parent][inner][bundle]. The last bundle is padded with zeros.
int64_t bundle_size(const WeightLayout& layout, int64_t bundle);
Buffer pack_bundles(const Tensor& weight, const WeightLayout& layout, const Level& level, int64_t bundle);

// Checks the inputs of attention or uniform routing; returns the shape of the parents' poses.
Shape attention_output(const char* op, const Shape& pose, const Shape& weight, const Shape& scale, bool matrix_pose,
                       const Shape& strides);

struct Window {
  int64_t grid_height, grid_width, types;  // of the children's map
  int64_t height, width;                   // of the window
  bool shared;                             // one weight for every position of the window
};
std::vector<Child> children_of(const Window& window);

// rows x inner poses times inner x columns weights, `units` at a time in one tile.
Votes plan_votes(const Level& level, const std::vector<Child>& children, const float* weight, int64_t pose_size,
                 int64_t rows, int64_t inner, int64_t columns, int64_t parents, int64_t units);

// Floats of scratch that a pass over these votes needs.
int64_t scratch_floats(const Votes& votes);

// Convert [elements][lanes] to [parents][elements], and back.
void to_parents(const Votes& votes, const float* from, float* to);
void from_parents(const Votes& votes, const float* from, float* to);

int64_t round_up(int64_t x, int64_t to);

}  // namespace capsedge
