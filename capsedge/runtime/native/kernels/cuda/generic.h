// A pass over a part of a unit's children, for any sizes: votes are computed where they are used, element by element.
// Logits of kTile children at a time are held in scratch memory.
#pragma once

#include "over_children.h"

namespace capsedge {
namespace cuda {

// Logit of a child for a parent, given the unit's results from the previous pass: none if `first`.
template <typename T, typename W>
CAPSEDGE_DEVICE float generic_logit(const Layer& l, const float* state, const Child& child, int number, int parent,
                                    bool first) {
  const int64_t at = static_cast<int64_t>(parent) * l.pose_elements;
  const int64_t all = static_cast<int64_t>(l.parents) * l.pose_elements;
  if (l.operation == CAPSEDGE_CUDA_EM) {
    if (first) return 0.0f;
    float distance = 0.0f;
    for (int h = 0; h < l.pose_elements; ++h) {
      const float d = vote_element<T, W>(l, child, parent, h / l.columns, h % l.columns) - state[at + h];
      distance = fmaf(d * d, state[all + at + h], distance);
    }
    return fmaf(-0.5f, distance, state[2 * all + parent]);
  }
  float agreement = 0.0f;
  if (!first)
    for (int h = 0; h < l.pose_elements; ++h)
      agreement = fmaf(state[at + h], vote_element<T, W>(l, child, parent, h / l.columns, h % l.columns), agreement);
  return agreement + prior_of<T>(l, number, parent, first);
}

// Replaces one child's logits by its couplings; EM: times its activation; self-attention: plus the bias.
template <typename T>
CAPSEDGE_DEVICE void generic_softmax(const Layer& l, const Child& child, bool first_pass, float* row) {
  float top = l.leaky ? 0.0f : kLowest, sum = 0.0f;
  for (int m = 0; m < l.parents; ++m) top = fmaxf(top, row[m]);
  for (int m = 0; m < l.parents; ++m) sum += row[m] = expf(row[m] - top);
  if (l.leaky) sum += expf(-top);
  const float weight = l.operation == CAPSEDGE_CUDA_EM ? activation_of<T>(l, child.pose) * first_factor(l, first_pass) : 1.0f;
  for (int m = 0; m < l.parents; ++m)
    row[m] = fmaf(row[m] / sum, weight, coupling_bias_of<T>(l, child.number, m, first_pass));
}

// Adds the votes of `count` children to a parent's sums, mass and top, using their logits.
template <typename T, typename W>
CAPSEDGE_DEVICE void generic_over_children(const Block& b, const Layer& l, const Window& window, int begin, int count,
                                           const float* logits, float* partial) {
  const int size = l.parents * l.pose_elements;
  float *mass = partial + size, *tops = mass + l.parents;
  const auto highest = [&](int parent) {
    float top = tops[parent];
    for (int c = 0; c < count; ++c) top = fmaxf(top, logits[c * l.parents + parent]);
    return top;
  };
  for (int at = b.thread(); at < size; at += b.threads()) {
    const int parent = at / l.pose_elements, h = at % l.pose_elements;
    const float top = highest(parent);
    float value = partial[at] * shrunk(tops[parent], top);
    for (int c = 0; c < count; ++c)
      value = fmaf(expf(logits[c * l.parents + parent] - top),
                   vote_element<T, W>(l, child_of(l, window, begin + c), parent, 0, h), value);
    partial[at] = value;
  }
  b.sync();
  for (int m = b.thread(); m < l.parents; m += b.threads()) {
    const float top = highest(m);
    mass[m] *= shrunk(tops[m], top);
    for (int c = 0; c < count; ++c) mass[m] += expf(logits[c * l.parents + m] - top);
    tops[m] = top;
  }
  b.sync();
}

template <typename T, typename W>
CAPSEDGE_DEVICE void generic_pass(const Block& b, const Layer& l, int64_t unit, int first, int last,
                                  const float* state, bool first_pass, float* partial, float* scratch) {
  const int size = l.parents * l.pose_elements;
  const bool em = l.operation == CAPSEDGE_CUDA_EM;
  const Window window = window_of(l, unit);
  for (int at = b.thread(); at < l.floats; at += b.threads())
    partial[at] = l.over_children && at >= size + l.parents ? kLowest : 0.0f;
  for (int begin = first; begin < last; begin += kTile) {
    const int count = last - begin < kTile ? last - begin : kTile;
    for (int at = b.thread(); at < count * l.parents; at += b.threads()) {
      const int number = begin + at / l.parents;
      scratch[at] = generic_logit<T, W>(l, state, child_of(l, window, number), number, at % l.parents, first_pass);
    }
    b.sync();
    if (l.over_children) {
      generic_over_children<T, W>(b, l, window, begin, count, scratch, partial);
      continue;
    }
    for (int c = b.thread(); c < count; c += b.threads())
      generic_softmax<T>(l, child_of(l, window, begin + c), first_pass, scratch + c * l.parents);
    b.sync();
    for (int at = b.thread(); at < size; at += b.threads()) {
      const int parent = at / l.pose_elements, h = at % l.pose_elements;
      float mass = em ? partial[2 * size + parent] : 0.0f;
      float value = partial[at], squares = em ? partial[size + at] : 0.0f;
      for (int c = 0; c < count; ++c) {
        const float share = scratch[c * l.parents + parent];
        const Child child = child_of(l, window, begin + c);
        const float vote = vote_element<T, W>(l, child, parent, h / l.columns, h % l.columns);
        if (em) {
          add_vote<1>(share, &vote, mass, &value, &squares);
        } else {
          value = fmaf(share, vote, value);
        }
      }
      partial[at] = value;
      if (em) partial[size + at] = squares;
    }
    b.sync();
    if (em)
      for (int m = b.thread(); m < l.parents; m += b.threads())
        for (int c = 0; c < count; ++c) partial[2 * size + m] += scratch[c * l.parents + m];
    b.sync();
  }
}

}  // namespace cuda
}  // namespace capsedge
