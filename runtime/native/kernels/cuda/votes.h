// Votes of vectors on their way to the lanes that route them. A lane of routing has a whole parent, whose weights are hundreds
// of bytes from its neighbour's. Votes are therefore made by other lanes, one column each: these read side by side.
#pragma once

#include "layer.h"

namespace capsedge {
namespace cuda {

// A column of pose times weight: INNER elements side by side, or, if 0, as many as the layer has, `step` apart.
template <int INNER, typename T, typename W>
CAPSEDGE_DEVICE float column_of(const T* pose, const W* weight, int inner, int step) {
  float sum = 0.0f;
  if constexpr (INNER > 0) {
#pragma unroll
    for (int k = 0; k < INNER; k += 4) {
      float x[4], w[4];
      load4(pose + k, x);
      load4(weight + k, w);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum = fmaf(x[i], w[i], sum);
    }
  } else {
    for (int k = 0; k < inner; ++k) sum = fmaf(widen(pose[k]), widen(weight[k * step]), sum);
  }
  return sum;
}

// Votes [child][L / 4][parents][4] of these children, by all threads of the block. A thread keeps its parent and column.
template <int L, int INNER, typename T, typename W>
CAPSEDGE_DEVICE void make_columns(const Block& b, const Layer& l, const Window& window, int first, int last, float* votes) {
  const int elements = l.parents * L, together = elements < b.threads() ? b.threads() / elements : 1;
  const int mine = b.thread() / elements;  // of the children that are made together
  const int inner = INNER ? INNER : l.inner, step = INNER || columns_first(l) ? 1 : L;
  const bool contiguous = window.across == l.width;
  if (mine >= together) return;
  for (int at = b.thread() - mine * elements; at < elements; at += b.threads()) {
    const int parent = at / L, c = at % L;
    const float scale = l.weight_scale ? l.weight_scale[at] : 1.0f;
    const T* pose = static_cast<const T*>(l.pose) + (window.pose + first + mine) * inner;
    const int64_t matrix = l.one_weight ? 0 : static_cast<int64_t>(elements) * inner;
    const W* weight = static_cast<const W*>(l.weight) + (first + mine) * matrix +
                      static_cast<int64_t>(parent) * inner * L + (step == 1 ? c * inner : c);
    float* to = votes + mine * elements + c / 4 * 4 * l.parents + 4 * parent + c % 4;
    for (int number = first + mine; number < last; number += together) {
      if (!contiguous) pose = static_cast<const T*>(l.pose) + child_of(l, window, number).pose * inner;
      float vote = scale * column_of<INNER>(pose, weight, inner, step);
      if (l.vote_biases) vote += vote_bias_of<T>(l, number, parent, c);
      *to = vote;
      pose += together * inner;
      weight += together * matrix;
      to += together * elements;
    }
  }
}

// Likewise, for the sizes of published models in vectors.
template <int L, typename T, typename W>
CAPSEDGE_DEVICE void make_votes(const Block& b, const Layer& l, const Window& window, int first, int last, float* votes) {
  if (columns_first(l) && l.inner == 8)
    make_columns<L, 8, T, W>(b, l, window, first, last, votes);
  else if (columns_first(l) && l.inner == 16)
    make_columns<L, 16, T, W>(b, l, window, first, last, votes);
  else
    make_columns<L, 0, T, W>(b, l, window, first, last, votes);
}

// Makes the votes of the children from `begin` on that the block's groups take in one round, where they are not given: in
// shared memory, or, where they are kept, in the first round of the first pass for all children of the part.
template <int L, typename T, typename W>
CAPSEDGE_DEVICE void prepare_round(const Block& b, const Layer& l, const Window& window, int64_t unit, Part part, int begin,
                                   bool first_pass, float* round) {
  if (l.operation == CAPSEDGE_CUDA_VOTES || (l.votes && (!first_pass || begin > part.first))) return;
  const int end = l.votes ? part.last : begin + b.threads() / l.group;
  float* votes = l.votes ? l.votes + (unit * l.children + begin) * l.parents * L : round;
  b.sync();  // the votes of the last round have been read
  make_votes<L, T, W>(b, l, window, begin, end < part.last ? end : part.last, votes);
  b.sync();
}

template <int L>
CAPSEDGE_DEVICE void read_columns(const Layer& l, const float* votes, int parent, float* vote) {
#pragma unroll
  for (int c = 0; c < L; c += 4) load4(votes + c * l.parents + 4 * parent, vote + c);
}

// The vote of one lane's parent: the given one, or what prepare_round has made for this group's child.
template <int L, typename T>
CAPSEDGE_DEVICE void read_vote(const Layer& l, const Window& window, int64_t unit, const float* round, int group,
                               int number, int parent, float* vote) {
  if (l.operation == CAPSEDGE_CUDA_VOTES) {
    const T* given = static_cast<const T*>(l.pose) + (child_of(l, window, number).pose * l.parents + parent) * L;
#pragma unroll
    for (int c = 0; c < L; c += 4) load4(given + c, vote + c);
  } else if (l.votes) {
    read_columns<L>(l, l.votes + (unit * l.children + number) * l.parents * L, parent, vote);
  } else {
    read_columns<L>(l, round + group * l.parents * L, parent, vote);
  }
}

}  // namespace cuda
}  // namespace capsedge
