// A pass for poses whose size is known at compile time. A group of lanes processes one child, each lane Q parents:
// their votes, queries and sums stay in registers, and the softmax takes a few shuffles. The groups of a block process
// different children and are summed in order at the end.
#pragma once

#include "routing.h"
#include "votes.h"

namespace capsedge {
namespace cuda {

// A matrix's vote for one parent: rows R, columns L. Lanes read four elements at a time, 4 * L apart: the following
// reads use the rest of every cache line that the first one touches.
template <int R, int L, typename T, typename W>
CAPSEDGE_DEVICE void make_vote(const Layer& l, const Child& child, int parent, float* vote) {
  const T* pose = static_cast<const T*>(l.pose) + child.pose * l.pose_size;
  const W* weight =
      static_cast<const W*>(l.weight) + (child.weight * l.parents + parent) * static_cast<int64_t>(l.inner) * L;
#pragma unroll
  for (int h = 0; h < R * L; ++h) vote[h] = 0.0f;
  for (int k = 0; k < l.inner; ++k) {
    float w[L];
    if constexpr (L % 4 == 0) {
#pragma unroll
      for (int c = 0; c < L; c += 4) load4(weight + k * L + c, w + c);
    } else {
#pragma unroll
      for (int c = 0; c < L; ++c) w[c] = widen(weight[k * L + c]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float x = widen(pose[r * l.inner + k]);
#pragma unroll
      for (int c = 0; c < L; ++c) vote[r * L + c] = fmaf(x, w[c], vote[r * L + c]);
    }
  }
  if (l.weight_scale) {
#pragma unroll
    for (int c = 0; c < L; ++c) {
      const float s = l.weight_scale[parent * L + c];
#pragma unroll
      for (int r = 0; r < R; ++r) vote[r * L + c] *= s;
    }
  }
  if (l.coordinates) {
    vote[L - 1] += (child.row + 0.5f) / l.height;
    vote[2 * L - 1] += (child.column + 0.5f) / l.width;
  }
  if (l.additions) {
    const int64_t at = addition_of(l, child.row, child.column);
#pragma unroll
    for (int h = 0; h < R * L; ++h) vote[h] += load<T>(l.additions, at + h);
  }
}

template <int R, int L, int Q, typename T, typename W>
CAPSEDGE_DEVICE void sum_pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state, bool first_pass,
                              float* partial, float* round) {
  constexpr int P = R * L;
  const int lane = b.thread() % l.group, group = b.thread() / l.group, groups = b.threads() / l.group;
  float query[Q][P], sums[Q][P];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const int parent = lane + q * l.group;
#pragma unroll
    for (int h = 0; h < P; ++h) {
      sums[q][h] = query[q][h] = 0.0f;
    }
    if (!first_pass && parent < l.parents) load_parent<P>(l, state, parent, query[q]);
  }
  const Window window = window_of(l, unit);
  // All groups loop equally often, because shuffles need whole warps.
  for (int begin = part.first; begin < part.last; begin += groups) {
    const int number = begin + group;
    const bool mine = number < part.last;
    if constexpr (R == 1) make_round<L, T, W>(b, l, window, begin, part.last, round);
    float vote[Q][P], logit[Q];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int parent = lane + q * l.group;
      logit[q] = kLowest;
      if (parent >= l.parents || !mine) continue;
      if constexpr (R == 1)
        read_vote<L, T>(l, window, unit, round, group, number, parent, vote[q]);
      else
        make_vote<R, L, T, W>(l, child_of(l, window, number), parent, vote[q]);
      logit[q] = agreement<P>(query[q], vote[q]) + prior_of<T>(l, number, parent, first_pass);
    }
    group_softmax<Q>(b, l, logit);
    if (!mine) continue;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int parent = lane + q * l.group;
      if (parent >= l.parents) continue;
      const float share = logit[q] + coupling_bias_of<T>(l, number, parent, first_pass);
#pragma unroll
      for (int h = 0; h < P; ++h) sums[q][h] = fmaf(share, vote[q][h], sums[q][h]);
    }
  }
  for (int turn = 0; turn < groups; ++turn) {
    if (turn == group) {
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        const int parent = lane + q * l.group;
        if (parent >= l.parents) continue;
        if (turn) {
          float before[P];
          load_parent<P>(l, partial, parent, before);
#pragma unroll
          for (int h = 0; h < P; ++h) sums[q][h] = before[h] + sums[q][h];
        }
        store_parent<P>(l, sums[q], parent, partial);
      }
    }
    b.sync();
  }
}

template <int R, int L, int Q, typename T, typename W>
CAPSEDGE_DEVICE void em_pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state, bool first_pass,
                             float* partial) {
  constexpr int P = R * L;
  const int lane = b.thread() % l.group, group = b.thread() / l.group, groups = b.threads() / l.group;
  const int size = l.parents * P;
  float mean[Q][P], squares[Q][P], mass[Q];
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    mass[q] = 0.0f;
#pragma unroll
    for (int h = 0; h < P; ++h) mean[q][h] = squares[q][h] = 0.0f;
  }
  const Window window = window_of(l, unit);
  for (int begin = part.first; begin < part.last; begin += groups) {
    const bool mine = begin + group < part.last;
    const Child child = child_of(l, window, mine ? begin + group : part.first);
    float vote[Q][P], share[Q];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int parent = lane + q * l.group;
      share[q] = kLowest;
      if (parent >= l.parents) continue;
      make_vote<R, L, T, W>(l, child, parent, vote[q]);
      share[q] = 0.0f;
      if (first_pass) continue;
      float known[P], precision[P];
      load_parent<P>(l, state, parent, known);
      load_parent<P>(l, state + size, parent, precision);
      share[q] = log_density<P>(vote[q], known, precision, state[2 * size + parent]);
    }
    group_softmax<Q>(b, l, share);
    if (!mine) continue;
    const float a = activation_of<T>(l, child.pose) * first_factor(l, first_pass);
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      if (lane + q * l.group >= l.parents) continue;
      add_vote<P>(share[q] * a, vote[q], mass[q], mean[q], squares[q]);
    }
  }
  for (int turn = 0; turn < groups; ++turn) {
    if (turn == group) {
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        const int parent = lane + q * l.group;
        if (parent >= l.parents) continue;
        const float before = turn ? partial[2 * size + parent] : 0.0f;
        partial[2 * size + parent] = before + mass[q];
        float centre[P] = {}, spread[P] = {};
        if (turn) {
          load_parent<P>(l, partial, parent, centre);
          load_parent<P>(l, partial + size, parent, spread);
        }
#pragma unroll
        for (int h = 0; h < P; ++h) add_moments(before, mass[q], mean[q][h], squares[q][h], centre[h], spread[h]);
        store_parent<P>(l, centre, parent, partial);
        store_parent<P>(l, spread, parent, partial + size);
      }
    }
    b.sync();
  }
}

}  // namespace cuda
}  // namespace capsedge
