// How kernels find and read what a layer has for a unit, a child and a parent.
#pragma once

#include "device.h"
#include "layer.h"

namespace capsedge {
namespace cuda {

// Load and store a parent's elements in such memory, in kernels for this size of pose.
template <int P>
CAPSEDGE_DEVICE void load_parent(const Layer& l, const float* from, int parent, float* pose) {
#pragma unroll
  for (int h = 0; h < P; h += 4) load4(from + h * l.parents + 4 * parent, pose + h);
}
template <int P>
CAPSEDGE_DEVICE void store_parent(const Layer& l, const float* pose, int parent, float* to) {
  // If indexed by fours, nvcc stores them with one instruction; if indexed by floats, with four.
  Four<float>* fours = reinterpret_cast<Four<float>*>(to) + parent;
#pragma unroll
  for (int h = 0; h < P; h += 4) fours[h / 4 * l.parents] = {pose[h], pose[h + 1], pose[h + 2], pose[h + 3]};
}

// Dynamic routing, of capsules or of votes.
CAPSEDGE_DEVICE bool by_agreement(const Layer& l) {
  return l.operation == CAPSEDGE_CUDA_DYNAMIC || l.operation == CAPSEDGE_CUDA_VOTES;
}

// The part of a logit besides agreements: the prior, until agreements replace it.
template <typename T>
CAPSEDGE_DEVICE float prior_of(const Layer& l, int child, int parent, bool first_pass) {
  if (!by_agreement(l) || (l.replace && !first_pass)) return 0.0f;
  return load<T>(l.log_prior, static_cast<int64_t>(child) * l.parents + parent);
}

// The bias added to a coupling; the first pass of self-attention only sums votes.
template <typename T>
CAPSEDGE_DEVICE float coupling_bias_of(const Layer& l, int child, int parent, bool first_pass) {
  if (l.operation != CAPSEDGE_CUDA_SELF_ATTENTION || first_pass) return 0.0f;
  return load<T>(l.bias, static_cast<int64_t>(child) * l.parents + parent);
}

// Element `c` of the bias added to a child's vote for a parent.
template <typename T>
CAPSEDGE_DEVICE float vote_bias_of(const Layer& l, int64_t child, int parent, int c) {
  return load<T>(l.vote_bias, ((l.vote_biases > 1 ? child : 0) * l.parents + parent) * l.columns + c);
}

// A part of a unit's children; a cluster's last blocks may have none left.
struct Part {
  int first, last;
};

CAPSEDGE_DEVICE Part part_of(const Layer& l, int number) {
  const int first = number * l.part;
  return {first, first + l.part < l.children ? first + l.part : l.children};
}

// The location of a child of a unit.
struct Child {
  int64_t pose;    // index of its pose in the map, in capsules
  int64_t weight;  // index of its weight
  int32_t number;  // in its window
  int32_t row, column;
};

// The start and the width of a unit's window.
struct Window {
  int64_t pose;  // index of the first cell's first capsule
  int32_t row, column, across;
};

CAPSEDGE_DEVICE int cells_across(const Layer& l) { return l.shared ? l.width : l.kernel_width; }

CAPSEDGE_DEVICE Window window_of(const Layer& l, int64_t unit) {
  const int64_t image = unit / l.positions;
  const int position = static_cast<int>(unit - image * l.positions), row = position / l.grid_width;
  Window window{0, 0, 0, cells_across(l)};
  if (!l.shared) {
    window.row = row * l.stride_rows;
    window.column = (position - row * l.grid_width) * l.stride_columns;
  }
  window.pose = ((image * l.height + window.row) * l.width + window.column) * l.types;
  return window;
}

CAPSEDGE_DEVICE Child child_of(const Layer& l, const Window& window, int child) {
  const int cell = l.by_types(child), type = child - cell * l.types;
  const int row = l.by_across(cell), column = cell - row * window.across;
  Child found;
  found.number = child;
  found.row = window.row + row;
  found.column = window.column + column;
  found.weight = l.shared ? type : l.one_weight ? 0 : child;
  found.pose = window.pose + (static_cast<int64_t>(row) * l.width + column) * l.types + type;
  return found;
}

// Index of the first element that is added to the votes of a cell's children.
CAPSEDGE_DEVICE int64_t addition_of(const Layer& l, int row, int column) {
  return (static_cast<int64_t>(row) * l.width + column) * l.pose_elements;
}

// Activation of the capsule at this index of the map.
template <typename T>
CAPSEDGE_DEVICE float activation_of(const Layer& l, int64_t capsule) {
  const float a = load<T>(l.activation, capsule);
  return l.normalize_activations ? a / (a + l.epsilon) : a;
}

// The factor of couplings: in a first pass, the equal couplings 1/M may be 1 instead.
CAPSEDGE_DEVICE float first_factor(const Layer& l, bool first_pass) {
  return l.ones_first && first_pass ? static_cast<float>(l.parents) : 1.0f;
}

// One element of a vote: row r, column c of pose times weight, including everything added to it.
template <typename T, typename W>
CAPSEDGE_DEVICE float vote_element(const Layer& l, const Child& child, int parent, int r, int c) {
  if (l.operation == CAPSEDGE_CUDA_VOTES) return load<T>(l.pose, (child.pose * l.parents + parent) * l.columns + c);
  const int64_t pose = child.pose * l.pose_size + r * l.inner;
  const int64_t block = (child.weight * l.parents + parent) * l.inner * l.columns;
  const int64_t weight = block + (columns_first(l) ? static_cast<int64_t>(c) * l.inner : c);
  const int step = columns_first(l) ? 1 : l.columns;
  float sum = 0.0f;
  for (int k = 0; k < l.inner; ++k) sum = fmaf(load<T>(l.pose, pose + k), load<W>(l.weight, weight + k * step), sum);
  if (l.weight_scale) sum *= l.weight_scale[parent * l.columns + c];
  if (l.vote_biases) sum += vote_bias_of<T>(l, child.number, parent, c);
  if (l.coordinates && c == l.columns - 1 && r < 2)
    sum += r == 0 ? (child.row + 0.5f) / l.height : (child.column + 0.5f) / l.width;
  if (l.additions) sum += load<T>(l.additions, addition_of(l, child.row, child.column) + r * l.columns + c);
  return sum;
}

}  // namespace cuda
}  // namespace capsedge
