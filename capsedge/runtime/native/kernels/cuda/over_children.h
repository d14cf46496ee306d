// A pass of dynamic routing whose softmax runs over the children, for poses of a size known when compiled: each lane
// keeps its parents' sums of exp (logit - top), with the sum of these numbers and the top so far. A part of the children
// is sums[parents][pose], mass[parents], top[parents].
#pragma once

#include "routing.h"
#include "votes.h"

namespace capsedge {
namespace cuda {

// The factor that converts sums for one top to those for another top that is not lower.
CAPSEDGE_DEVICE float shrunk(float top, float higher) { return top == higher ? 1.0f : expf(top - higher); }

template <int L, int Q, typename T, typename W>
CAPSEDGE_DEVICE void over_children_pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state,
                                        bool first_pass, float* partial, float* round) {
  const int lane = b.thread() % l.group, group = b.thread() / l.group, groups = b.threads() / l.group;
  const int size = l.parents * L;
  float query[Q][L], sums[Q][L], mass[Q], top[Q];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const int parent = lane + q * l.group;
    mass[q] = 0.0f;
    top[q] = kLowest;
#pragma unroll
    for (int h = 0; h < L; ++h) sums[q][h] = query[q][h] = 0.0f;
    if (!first_pass && parent < l.parents) load_parent<L>(l, state, parent, query[q]);
  }
  const Window window = window_of(l, unit);
  // All groups loop equally often, because they compute votes together.
  for (int begin = part.first; begin < part.last; begin += groups) {
    const int number = begin + group;
    make_round<L, T, W>(b, l, window, begin, part.last, round);
    if (number >= part.last) continue;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int parent = lane + q * l.group;
      if (parent >= l.parents) continue;
      float vote[L];
      read_vote<L, T>(l, window, unit, round, group, number, parent, vote);
      const float logit = agreement<L>(query[q], vote) + prior_of<T>(l, number, parent, first_pass);
      const float high = fmaxf(top[q], logit), shrink = shrunk(top[q], high), e = expf(logit - high);
      top[q] = high;
      mass[q] = fmaf(mass[q], shrink, e);
#pragma unroll
      for (int h = 0; h < L; ++h) sums[q][h] = fmaf(sums[q][h], shrink, e * vote[h]);
    }
  }
  for (int turn = 0; turn < groups; ++turn) {
    if (turn == group) {
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        const int parent = lane + q * l.group;
        if (parent >= l.parents) continue;
        const float before = turn ? partial[size + l.parents + parent] : kLowest, high = fmaxf(before, top[q]);
        const float theirs = turn ? shrunk(before, high) : 0.0f, mine = shrunk(top[q], high);
        partial[size + l.parents + parent] = high;
        partial[size + parent] = (turn ? partial[size + parent] * theirs : 0.0f) + mass[q] * mine;
        float gathered[L] = {};
        if (turn) load_parent<L>(l, partial, parent, gathered);
#pragma unroll
        for (int h = 0; h < L; ++h) gathered[h] = gathered[h] * theirs + sums[q][h] * mine;
        store_parent<L>(l, gathered, parent, partial);
      }
    }
    b.sync();
  }
}

}  // namespace cuda
}  // namespace capsedge
