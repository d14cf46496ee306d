// A pass over many units at once: a block processes several units and reads the weights of a few children into shared
// memory, where every group of lanes uses them for its own units. Otherwise, weights would be read from the
// second-level cache once per unit, and the pass would wait for them. A group of lanes processes U units, each lane one
// parent.
#pragma once

#include "routing.h"
#include "staging.h"

namespace capsedge {
namespace cuda {

// A child's position in its window, incremented from child to child.
struct Walk {
  int type, row, column;
  int64_t pose;  // in capsules from the beginning of the window
};

CAPSEDGE_DEVICE Walk walk_from(const Layer& l, int child) {
  const int cell = child / l.types, across = cells_across(l);
  Walk walk{child % l.types, cell / across, cell % across, 0};
  walk.pose = (static_cast<int64_t>(walk.row) * l.width + walk.column) * l.types + walk.type;
  return walk;
}

CAPSEDGE_DEVICE void step(const Layer& l, Walk& walk) {
  ++walk.pose;
  if (++walk.type < l.types) return;
  walk.type = 0;
  if (++walk.column < cells_across(l)) return;
  walk.column = 0;
  ++walk.row;
  walk.pose += static_cast<int64_t>(l.width - cells_across(l)) * l.types;
}

// The state that a lane keeps for a unit and one parent from child to child.
template <int P, bool EM>
struct Gathered {
  float query[P];  // the values that votes are compared with, or means of the previous pass
  float sums[P];   // of weighted votes, or means
  float precision[EM ? P : 1], squares[EM ? P : 1];
  float offset, mass;
};

template <int P, bool EM>
CAPSEDGE_DEVICE void begin_unit(const Layer& l, int parent, const float* state, bool known, Gathered<P, EM>& g) {
  const int size = l.parents * P;
  g.offset = EM && known ? state[2 * size + parent] : 0.0f;
  g.mass = 0.0f;
#pragma unroll
  for (int h = 0; h < P; ++h) {
    g.query[h] = g.sums[h] = 0.0f;
    if (EM) g.precision[h] = g.squares[h] = 0.0f;
  }
  if (!known) return;
  load_parent<P>(l, state, parent, g.query);
  if constexpr (EM) load_parent<P>(l, state + size, parent, g.precision);
}

template <int P, bool EM>
CAPSEDGE_DEVICE void end_unit(const Layer& l, int parent, const Gathered<P, EM>& g, float* partial) {
  const int size = l.parents * P;
  store_parent<P>(l, g.sums, parent, partial);
  if constexpr (EM) {
    store_parent<P>(l, g.squares, parent, partial + size);
    partial[2 * size + parent] = g.mass;
  }
}

// Adds pose times weight to the votes of U units; `weight` is [column][inner] in the tile.
template <int L, int U, typename T>
CAPSEDGE_DEVICE void add_columns(int inner, const T* const* pose, const float* weight, float (*vote)[L]) {
  for (int k = 0; k < inner; k += 4) {
    float x[U][4];
#pragma unroll
    for (int u = 0; u < U; ++u) load4(pose[u] + k, x[u]);
#pragma unroll
    for (int c = 0; c < L; ++c) {
      float w[4];
      load4(weight + c * inner + k, w);
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int i = 0; i < 4; ++i) vote[u][c] = fmaf(x[u][i], w[i], vote[u][c]);
    }
  }
}

// Likewise for [inner][column]: vectors, whose elements are kept while the weights are read.
template <int L, int U, typename T>
CAPSEDGE_DEVICE void add_rows(int inner, const T* const* pose, const float* weight, float (*vote)[L]) {
  for (int k = 0; k < inner; k += 4) {
    float x[U][4];
#pragma unroll
    for (int u = 0; u < U; ++u) load4(pose[u] + k, x[u]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < L; c += 4) {
        float w[4];
        load4(weight + (k + i) * L + c, w);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int e = 0; e < 4; ++e) vote[u][c + e] = fmaf(x[u][i], w[e], vote[u][c + e]);
      }
  }
}

// Likewise for matrices: weights are kept while the rows of the poses are read. The votes' first products are not added
// to zeros.
template <int R, int L, int U, bool FIRST, typename T>
CAPSEDGE_DEVICE void add_four_rows(int inner, const T* const* pose, const float* weight, float (*vote)[R * L]) {
  float w[4][L];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int c = 0; c < L; c += 4) load4(weight + i * L + c, w[i] + c);
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float x[4];
      load4(pose[u] + r * inner, x);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int c = 0; c < L; ++c) {
          float& element = vote[u][r * L + c];
          element = FIRST && i == 0 ? x[i] * w[i][c] : fmaf(x[i], w[i][c], element);
        }
    }
}
template <int R, int L, int U, typename T>
CAPSEDGE_DEVICE void make_matrices(int inner, const T** pose, const float* weight, float (*vote)[R * L]) {
  add_four_rows<R, L, U, true, T>(inner, pose, weight, vote);
#pragma unroll 1
  for (int k = 4; k < inner; k += 4) {
#pragma unroll
    for (int u = 0; u < U; ++u) pose[u] += 4;
    add_four_rows<R, L, U, false, T>(inner, pose, weight + k * L, vote);
  }
}

// The coordinates that EM routing adds to a unit's vote.
template <int R, int L, typename T>
CAPSEDGE_DEVICE void add_place(const Layer& l, int row, int column, float* vote) {
  if (l.coordinates) {
    vote[L - 1] += (row + 0.5f) / l.height;
    vote[2 * L - 1] += (column + 0.5f) / l.width;
  }
  if (!l.additions) return;
  const int64_t at = addition_of(l, row, column);
#pragma unroll
  for (int h = 0; h < R * L; ++h) vote[h] += load<T>(l.additions, at + h);
}

// Votes of one parent for U units; `weight` is the lane's matrix in the tile.
template <int R, int L, int U, bool EM, typename T>
CAPSEDGE_DEVICE void tiled_votes(const Layer& l, const Window* window, const Walk& walk, int number, int parent,
                                 const float* weight, float (*vote)[R * L]) {
  const T* pose[U];
#pragma unroll
  for (int u = 0; u < U; ++u) pose[u] = static_cast<const T*>(l.pose) + (window[u].pose + walk.pose) * l.pose_size;
  if constexpr (R > 1) {
    make_matrices<R, L, U, T>(l.inner, pose, weight, vote);
  } else {
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int h = 0; h < L; ++h) vote[u][h] = 0.0f;
    columns_first(l) ? add_columns<L, U, T>(l.inner, pose, weight, vote) : add_rows<L, U, T>(l.inner, pose, weight, vote);
    if (l.vote_biases) {
#pragma unroll
      for (int c = 0; c < L; ++c) {
        const float constant = vote_bias_of<T>(l, number, parent, c);
#pragma unroll
        for (int u = 0; u < U; ++u) vote[u][c] += constant;
      }
    }
  }
  if constexpr (EM) {
#pragma unroll
    for (int u = 0; u < U; ++u) add_place<R, L, T>(l, window[u].row + walk.row, window[u].column + walk.column, vote[u]);
  }
}

// Adds a child's votes to the sums, weighted by their couplings. A lane without a parent takes part in the softmax,
// because shuffles need whole warps, but its sums are never read.
template <int R, int U, bool EM, typename T, int P>
CAPSEDGE_DEVICE void gather(const Block& b, const Layer& l, const Window* window, const Walk& walk, int number,
                            int parent, bool mine, bool first_pass, const float (*vote)[P], Gathered<P, EM>* g) {
  float prior = 0.0f, bias = 0.0f;
  if constexpr (R == 1) {
    prior = prior_of<T>(l, number, parent, first_pass);
    bias = coupling_bias_of<T>(l, number, parent, first_pass);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    float logit;
    if constexpr (EM)
      logit = log_density<P>(vote[u], g[u].query, g[u].precision, g[u].offset);
    else
      logit = agreement<P>(g[u].query, vote[u]) + prior;
    if (!mine) logit = kLowest;
    group_softmax<1>(b, l, &logit);
    if constexpr (EM) {
      const float activation = activation_of<T>(l, window[u].pose + walk.pose) * first_factor(l, first_pass);
      add_vote<P>(logit * activation, vote[u], g[u].mass, g[u].sums, g[u].squares);
    } else {
#pragma unroll
      for (int h = 0; h < P; ++h) g[u].sums[h] = fmaf(logit + bias, vote[u][h], g[u].sums[h]);
    }
  }
}

template <int R, int L, int U, bool EM, typename T, typename W>
CAPSEDGE_DEVICE void tiled_pass(const Block& b, const Layer& l, int64_t first_unit, int first, int last,
                                const float* states, bool first_pass, float* partials, int64_t partial_stride) {
  constexpr int P = R * L;
  const int lane = b.thread() % l.group;
  const bool mine = lane < l.parents;
  const int parent = mine ? lane : 0;
  const int child_stride = l.one_weight ? 0 : l.parents * l.stride;
  float* tile = b.shared();
  Window window[U];
  Gathered<P, EM> gathered[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t unit = first_unit + b.thread() / l.group * U + u;
    window[u] = window_of(l, unit < l.units ? unit : 0);
    begin_unit<P, EM>(l, parent, states + unit * l.room, unit < l.units && !first_pass, gathered[u]);
  }
  Walk walk = walk_from(l, first);
  for (int begin = first; begin < last;) {
    // The weights of a tile are contiguous; if cells share weights, a tile ends with the last type.
    int count = last - begin < l.tile ? last - begin : l.tile;
    if (l.shared && l.types - walk.type < count) count = l.types - walk.type;
    b.sync();
    const int64_t child = l.shared ? walk.type : l.one_weight ? 0 : begin;
    stage<W>(b, l, child * l.parents, (l.one_weight ? 1 : count) * l.parents, tile);
    b.sync();
    const float* weight = tile + parent * l.stride;
    for (const int end = begin + count; begin < end; ++begin, weight += child_stride) {
      float vote[U][P];
      tiled_votes<R, L, U, EM, T>(l, window, walk, begin, parent, weight, vote);
      gather<R, U, EM, T>(b, l, window, walk, begin, parent, mine, first_pass, vote, gathered);
      step(l, walk);
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t unit = first_unit + b.thread() / l.group * U + u;
    if (mine && unit < l.units) end_unit<P, EM>(l, parent, gathered[u], partials + unit * partial_stride);
  }
}

}  // namespace cuda
}  // namespace capsedge
