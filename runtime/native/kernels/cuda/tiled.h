// A pass over many units at once: a block takes several units and reads the weights of a few children into shared
// memory, where every group of lanes uses them for its own units. Without that, weights come from the second-level
// cache once for every unit, and that is what the pass waits for. A group of lanes takes U units, each lane one parent.
#pragma once

#include "routing.h"

namespace capsedge {
namespace cuda {

// Weights of `count` children from `begin` on, as [child][parent][inner][column], in FP32 with their scale.
template <typename W>
CAPSEDGE_DEVICE void load_tile(const Block& b, const Layer& l, int begin, int count, float* tile) {
  const int matrix = l.inner * l.columns, one = l.parents * matrix;
  for (int at = b.thread(); at < count * one; at += b.threads()) {
    const int child = at / one, rest = at % one, parent = rest / matrix, place = rest % matrix;
    const int number = l.one_weight ? 0 : l.shared ? (begin + child) % l.types : begin + child;
    const int k = columns_first(l) ? place % l.inner : place / l.columns;
    const int c = columns_first(l) ? place / l.inner : place % l.columns;
    float value = load<W>(l.weight, static_cast<int64_t>(number) * one + rest);
    if (l.weight_scale) value *= l.weight_scale[parent * l.columns + c];
    tile[(child * l.parents + parent) * l.stride + k * l.columns + c] = value;
  }
}

// The unit's part of a child's place in the map.
struct Corner {
  int64_t pose;  // index of the first cell's first capsule
  int row, column;
  bool there;
};

CAPSEDGE_DEVICE Corner corner_of(const Layer& l, int64_t unit) {
  Corner corner;
  corner.there = unit < l.units;
  const int64_t known = corner.there ? unit : 0;
  const int64_t image = known / l.positions;
  const int position = static_cast<int>(known % l.positions);
  corner.row = l.shared ? 0 : position / l.grid_width * l.stride_rows;
  corner.column = l.shared ? 0 : position % l.grid_width * l.stride_columns;
  corner.pose = ((image * l.height + corner.row) * l.width + corner.column) * l.types;
  return corner;
}

// Votes of one parent for U units; `weight` is the lane's matrix in the tile.
template <int R, int L, int U, typename T>
CAPSEDGE_DEVICE void tiled_votes(const Layer& l, const Corner* corner, int row, int column, int type,
                                 const float* weight, float (*vote)[R * L]) {
  const int64_t offset = (static_cast<int64_t>(row) * l.width + column) * l.types + type;
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int h = 0; h < R * L; ++h) vote[u][h] = 0.0f;
  for (int k = 0; k < l.inner; k += 4) {
    float x[U][R][4];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const T* pose = static_cast<const T*>(l.pose) + (corner[u].pose + offset) * l.pose_size + k;
#pragma unroll
      for (int r = 0; r < R; ++r) load4(pose + r * l.inner, x[u][r]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float w[L];
#pragma unroll
      for (int c = 0; c < L; c += 4) load4(weight + (k + i) * L + c, w + c);
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int c = 0; c < L; ++c) vote[u][r * L + c] = fmaf(x[u][r][i], w[c], vote[u][r * L + c]);
    }
  }
  if (R > 1 && l.coordinates) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      vote[u][L - 1] += (corner[u].row + row + 0.5f) / l.height;
      vote[u][2 * L - 1] += (corner[u].column + column + 0.5f) / l.width;
    }
  }
  if (l.additions) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t at = addition_of(l, corner[u].row + row, corner[u].column + column);
#pragma unroll
      for (int h = 0; h < R * L; ++h) vote[u][h] += load<T>(l.additions, at + h);
    }
  }
}

template <int R, int L, int U, bool EM, typename T, typename W>
CAPSEDGE_DEVICE void tiled_pass(const Block& b, const Layer& l, int64_t first_unit, int first, int last,
                                const float* states, bool first_pass, float* partials, int64_t partial_stride) {
  constexpr int P = R * L;
  const int parent = b.thread() % l.group, group = b.thread() / l.group;
  const int size = l.parents * P;
  const bool mine = parent < l.parents;
  const int tile_children = l.tile;
  float* tile = b.shared();
  Corner corner[U];
  // sums: weighted votes, or means; query: what votes are compared with, or means of the pass before.
  float query[U][P], sums[U][P], precision[EM ? U : 1][EM ? P : 1], squares[EM ? U : 1][EM ? P : 1];
  float offset[U], mass[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t unit = first_unit + group * U + u;
    corner[u] = corner_of(l, unit);
    const bool known = mine && corner[u].there && !first_pass;
    const float* state = states + unit * l.floats;
    offset[u] = EM && known ? state[2 * size + parent] : 0.0f;
    mass[u] = 0.0f;
#pragma unroll
    for (int h = 0; h < P; ++h) {
      query[u][h] = known ? state[parent * P + h] : 0.0f;
      sums[u][h] = 0.0f;
      if (EM) {
        precision[u][h] = known ? state[size + parent * P + h] : 0.0f;
        squares[u][h] = 0.0f;
      }
    }
  }
  for (int begin = first; begin < last; begin += tile_children) {
    const int count = last - begin < tile_children ? last - begin : tile_children;
    b.sync();
    load_tile<W>(b, l, begin, count, tile);
    b.sync();
    for (int c = 0; c < count; ++c) {
      const int number = begin + c, cell = number / l.types, type = number % l.types;
      const int across = l.shared ? l.width : l.kernel_width;
      const int row = cell / across, column = cell % across;
      float vote[U][P], logit[U];
      if (mine)
        tiled_votes<R, L, U, T>(l, corner, row, column, type, tile + (c * l.parents + parent) * l.stride, vote);
      if (mine && R == 1 && l.vote_biases) {
#pragma unroll
        for (int e = 0; e < L; ++e) {
          const float constant = vote_bias_of<T>(l, number, parent, e);
#pragma unroll
          for (int u = 0; u < U; ++u) vote[u][e] += constant;
        }
      }
#pragma unroll
      for (int u = 0; u < U; ++u) {
        logit[u] = kLowest;
        if (!mine) continue;
        if constexpr (EM)
          logit[u] = log_density<P>(vote[u], query[u], precision[u], offset[u]);
        else
          logit[u] = agreement<P>(query[u], vote[u]);
        logit[u] += prior_of<T>(l, number, parent, first_pass);
      }
#pragma unroll
      for (int u = 0; u < U; ++u) {
        // Shuffles want whole warps: no lane has left.
        group_softmax<1>(b, l, &logit[u]);
        if (!mine || !corner[u].there) continue;
        if constexpr (EM) {
          const int64_t at = (static_cast<int64_t>(row) * l.width + column) * l.types + type;
          const float activation = activation_of<T>(l, corner[u].pose + at) * first_factor(l, first_pass);
          add_vote<P>(logit[u] * activation, vote[u], mass[u], sums[u], squares[u]);
        } else {
          const float share = logit[u] + coupling_bias_of<T>(l, number, parent, first_pass);
#pragma unroll
          for (int h = 0; h < P; ++h) sums[u][h] = fmaf(share, vote[u][h], sums[u][h]);
        }
      }
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (!mine || !corner[u].there) continue;
    float* partial = partials + (first_unit + group * U + u) * partial_stride;
    if (EM) partial[2 * size + parent] = mass[u];
#pragma unroll
    for (int h = 0; h < P; ++h) {
      partial[parent * P + h] = sums[u][h];
      if (EM) partial[size + parent * P + h] = squares[u][h];
    }
  }
}

}  // namespace cuda
}  // namespace capsedge
