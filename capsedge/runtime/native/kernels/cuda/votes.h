// Computes the votes of vectors for the lanes that route them. A routing lane has a whole parent, whose weights are
// hundreds of bytes from its neighbour's. Votes are therefore computed by other lanes, one column each, which read
// neighbouring weights.
#pragma once

#include "access.h"

namespace capsedge {
namespace cuda {

// A column of pose times weight; elements of the weight are `step` apart.
template <typename T, typename W>
CAPSEDGE_DEVICE float column_of(const T* pose, const W* weight, int inner, int step) {
  float sum = 0.0f;
  for (int k = 0; k < inner; ++k) sum = fmaf(widen(pose[k]), widen(weight[k * step]), sum);
  return sum;
}

// Likewise for neighbouring columns of several children: all loads come first, since each has the full latency of
// memory.
template <int INNER, int COUNT, typename T, typename W>
CAPSEDGE_DEVICE void columns_of(const T* const* pose, const W* const* weight, float* sum) {
  float x[COUNT][INNER], w[COUNT][INNER];
#pragma unroll
  for (int child = 0; child < COUNT; ++child)
#pragma unroll
    for (int k = 0; k < INNER; k += 4) {
      load4(weight[child] + k, w[child] + k);
      load4(pose[child] + k, x[child] + k);
    }
#pragma unroll
  for (int child = 0; child < COUNT; ++child) {
    sum[child] = 0.0f;
#pragma unroll
    for (int k = 0; k < INNER; ++k) sum[child] = fmaf(x[child][k], w[child][k], sum[child]);
  }
}

// Votes [child][L / 4][parents][4] of these children, computed by all threads of the block. A thread keeps its parent
// and column, and processes COUNT children at once.
template <int L, int INNER, int COUNT, typename T, typename W>
CAPSEDGE_DEVICE void make_columns(const Block& b, const Layer& l, const Window& window, int first, int last, float* votes) {
  const int elements = l.parents * L;
  int together = 1, mine = b.thread() >= elements;  // of the children whose votes are computed together
  if (2 * elements <= b.threads()) {
    together = b.threads() / elements;
    mine = b.thread() / elements;
  }
  const int inner = INNER ? INNER : l.inner;
  const bool contiguous = window.across == l.width;
  if (mine >= together) return;
  for (int at = b.thread() - mine * elements; at < elements; at += b.threads()) {
    const int parent = at / L, c = at % L;
    const float scale = l.weight_scale ? l.weight_scale[at] : 1.0f;
    const W* weights = static_cast<const W*>(l.weight) + static_cast<int64_t>(parent) * inner * L +
                       (columns_first(l) ? c * inner : c);
    const int64_t matrix = l.one_weight ? 0 : static_cast<int64_t>(elements) * inner;
    float* to = votes + c / 4 * 4 * l.parents + 4 * parent + c % 4;
    for (int number = first + mine; number < last; number += COUNT * together) {
      const T* pose[COUNT];
      const W* weight[COUNT];
      float vote[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {  // beyond the last child, the first one again, whose votes are not used
        const int next = number + k * together, child = next < last ? next : number;
        const int64_t place = contiguous ? window.pose + child : child_of(l, window, child).pose;
        pose[k] = static_cast<const T*>(l.pose) + place * inner;
        weight[k] = weights + child * matrix;
      }
      if constexpr (INNER > 0)
        columns_of<INNER, COUNT>(pose, weight, vote);
      else
        vote[0] = column_of(pose[0], weight[0], inner, columns_first(l) ? 1 : L);
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        const int child = number + k * together;
        if (child >= last) continue;
        vote[k] *= scale;
        if (l.vote_biases) vote[k] += vote_bias_of<T>(l, child, parent, c);
        to[(child - first) * elements] = vote[k];
      }
    }
  }
}

// Likewise, for the sizes of published models in vectors; a thread holds up to FLOATS weights of several children at once.
template <int L, int FLOATS, typename T, typename W>
CAPSEDGE_DEVICE void make_votes(const Block& b, const Layer& l, const Window& window, int first, int last, float* votes) {
  if (columns_first(l) && l.inner == 8)
    make_columns<L, 8, FLOATS / 8, T, W>(b, l, window, first, last, votes);
  else if (columns_first(l) && l.inner == 16)
    make_columns<L, 16, (FLOATS + 8) / 16, T, W>(b, l, window, first, last, votes);
  else
    make_columns<L, 0, 1, T, W>(b, l, window, first, last, votes);
}

// Kept votes: a few children of a unit per block, so that the whole GPU reads the weights.
template <int L, typename T, typename W>
CAPSEDGE_DEVICE void keep_votes(const Block& b, const Layer& l) {
  const int64_t unit = b.y();
  const int first = b.x() * kKeptChildren;
  const int last = first + kKeptChildren < l.children ? first + kKeptChildren : l.children;
  float* votes = l.votes + (unit * l.children + first) * l.parents * L;
  make_votes<L, 32, T, W>(b, l, window_of(l, unit), first, last, votes);
}

// The votes of the children from `begin` on that the block's groups process in one round, in shared memory; none if
// votes are given or kept.
template <int L, typename T, typename W>
CAPSEDGE_DEVICE void make_round(const Block& b, const Layer& l, const Window& window, int begin, int last, float* round) {
  if (l.operation == CAPSEDGE_CUDA_VOTES || l.votes) return;
  const int end = begin + b.threads() / l.group;
  b.sync();  // the votes of the last round have been read
  make_votes<L, 8, T, W>(b, l, window, begin, end < last ? end : last, round);
  b.sync();
}

// The vote for one lane's parent: the given one, the kept one, or that of the round for this group's child.
template <int L, typename T>
CAPSEDGE_DEVICE void read_vote(const Layer& l, const Window& window, int64_t unit, const float* round, int group,
                               int number, int parent, float* vote) {
  if (l.operation == CAPSEDGE_CUDA_VOTES) {
    const T* given = static_cast<const T*>(l.pose) + (child_of(l, window, number).pose * l.parents + parent) * L;
#pragma unroll
    for (int c = 0; c < L; c += 4) load4(given + c, vote + c);
  } else if (l.votes) {
    load_parent<L>(l, l.votes + (unit * l.children + number) * l.parents * L, parent, vote);
  } else {
    load_parent<L>(l, round + group * l.parents * L, parent, vote);
  }
}

}  // namespace cuda
}  // namespace capsedge
