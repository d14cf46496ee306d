// Convolution by minimal filtering (cook_toom.h) in tiles of m x m outputs. A window is divided into pieces of at most
// kMostTaps x kMostTaps taps that have the convolution's stride between them. Inputs are transformed with channels in the
// lanes; products and outputs have the channels of the output there.
#pragma once

#include "cook_toom.h"
#include "level.h"
#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// Vectors of a strip of output channels, and tiles whose products are in registers together.
#if defined(CAPSEDGE_AVX512)
enum { kFilterVectors = 2, kFilterTiles = 12 };
#elif defined(CAPSEDGE_NEON)
enum { kFilterVectors = 4, kFilterTiles = 6 };
#else
enum { kFilterVectors = 2, kFilterTiles = 6 };
#endif
enum { kFilterLanes = kFilterVectors * W };

// sum + c·x for a constant c, with as few operations as possible.
CAPSEDGE_INLINE V add_multiple(V sum, double c, V x) {
  if (c == 1) return sum + x;
  if (c == -1) return sum - x;
  return madd(splat(static_cast<float>(c)), x, sum);
}

// The elements of a vector multiplied by a matrix whose entries are known to the compiler.
template <int Rows, int Columns, typename Matrix>
CAPSEDGE_INLINE void multiply(const Matrix& matrix, const V* x, V* y) {
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
    bool empty = true;
    V sum{};
#pragma GCC unroll 8
    for (int j = 0; j < Columns; ++j) {
      const double c = matrix[i][j];
      if (c == 0) continue;
      sum = !empty ? add_multiple(sum, c, x[j]) : c == 1 ? x[j] : splat(static_cast<float>(c)) * x[j];
      empty = false;
    }
    y[i] = sum;
  }
}

// Each of `lines` lines of vectors, whose elements are `step` floats apart, and lines `line`: the inputs' are multiplied
// by Bᵀ; the products' by Aᵀ, and the result is added to what is there.
typedef void (*FilterLines)(const float* from, int64_t step, int64_t line, int lines, float* to, int64_t to_step,
                            int64_t to_line);
template <bool Inputs, int M, int R>
static void transform_lines(const float* from, int64_t step, int64_t line, int lines, float* to, int64_t to_step,
                            int64_t to_line) {
  enum { kPoints = M + R - 1, kRows = Inputs ? kPoints : M };
  static constexpr CookToom matrices = cook_toom(M, R);
  for (int l = 0; l < lines; ++l, from += line, to += to_line) {
    V x[kPoints], y[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kPoints; ++i) x[i] = load(from + i * step);
    if constexpr (Inputs) {
      multiply<kRows, kPoints>(matrices.bt, x, y);
    } else {
      multiply<kRows, kPoints>(matrices.at, x, y);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) store(to + i * to_step, Inputs ? y[i] : load(to + i * to_step) + y[i]);
  }
}

template <bool Inputs, int M>
CAPSEDGE_INLINE FilterLines lines_of(int taps) {
  static constexpr FilterLines kOf[kMostTaps] = {transform_lines<Inputs, M, 1>, transform_lines<Inputs, M, 2>,
                                                 transform_lines<Inputs, M, 3>, transform_lines<Inputs, M, 4>,
                                                 transform_lines<Inputs, M, 5>};
  return kOf[taps - 1];
}
template <bool Inputs>
CAPSEDGE_INLINE FilterLines filter_lines(int tile, int taps) {
  return tile == 1 ? lines_of<Inputs, 1>(taps) : tile == 2 ? lines_of<Inputs, 2>(taps) : lines_of<Inputs, 3>(taps);
}

// A vector of channels of neighbouring tiles.
static void filter_input(const FilterPass& pass, const float* lines, int tiles, float* to) {
  V scratch[kMostPoints * kMostPoints];
  float* between = reinterpret_cast<float*>(scratch);
  for (int p = 0; p < pass.count; ++p) {
    const FilterPiece& piece = pass.pieces[p];
    const int rows = piece.rows + pass.tile - 1, columns = piece.columns + pass.tile - 1;
    const FilterLines down = filter_lines<true>(pass.tile, piece.rows);
    const FilterLines across = filter_lines<true>(pass.tile, piece.columns);
    float* first = to + piece.first * pass.position_stride;
    for (int t = 0; t < tiles; ++t) {
      down(lines + t * pass.tile_step + piece.start, pass.row_step, pass.column_step, columns, between, columns * W, W);
      across(between, W, columns * W, rows, first + t * pass.tile_stride, pass.position_stride,
             columns * pass.position_stride);
    }
  }
}

// y[tile][row][column][lanes] += the transformed products of neighbouring tiles in one piece.
static void filter_output(const FilterPass& pass, const float* products, int tiles, float* y) {
  V scratch[kMostTile * kMostPoints];
  float* between = reinterpret_cast<float*>(scratch);
  const FilterPiece& piece = pass.pieces[0];
  const int columns = piece.columns + pass.tile - 1;
  const FilterLines down = filter_lines<false>(pass.tile, piece.rows);
  const FilterLines across = filter_lines<false>(pass.tile, piece.columns);
  for (int t = 0; t < tiles; ++t, products += kFilterLanes, y += pass.tile * pass.tile * kFilterLanes)
    for (int v = 0; v < kFilterLanes; v += W) {
      for (int i = 0; i < pass.tile * columns; ++i) scratch[i] = V{};
      down(products + v, columns * pass.position_stride, pass.position_stride, columns, between, columns * W, W);
      across(between, W, columns * W, pass.tile, y + v, kFilterLanes, pass.tile * kFilterLanes);
    }
}

// The products of one position: out[row][lanes] = Σ_c x[row][c] weight[c][lanes]. Meanwhile a part of the next weights is
// fetched into the second-level cache, `ahead` floats for every channel.
template <int R>
static void filter_rows(const float* x, int64_t stride, const float* weight, int64_t channels, const float* next,
                        int64_t ahead, float* out) {
  V sums[R][kFilterVectors] = {};
  for (int64_t c = 0; c < channels; ++c, weight += kFilterLanes, next += ahead) {
    V w[kFilterVectors];
    __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 4
    for (int v = 0; v < kFilterVectors; ++v) w[v] = load(weight + v * W);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const V factor = splat(x[r * stride + c]);
#pragma GCC unroll 4
      for (int v = 0; v < kFilterVectors; ++v) sums[r][v] = madd(factor, w[v], sums[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kFilterVectors; ++v) store(out + r * kFilterLanes + v * W, sums[r][v]);
}

typedef void (*FilterRows)(const float* x, int64_t stride, const float* weight, int64_t channels, const float* next,
                           int64_t ahead, float* out);

// Rows in groups of nearly equal size, so that none leaves most registers empty.
static void filter_products(const float* x, int64_t stride, int rows, const float* weight, int64_t channels,
                            const float* next, float* out) {
  static constexpr FilterRows kRows[] = {
      filter_rows<1>, filter_rows<2>,  filter_rows<3>, filter_rows<4>,  filter_rows<5>,  filter_rows<6>,
#if defined(CAPSEDGE_AVX512)
      filter_rows<7>, filter_rows<8>,  filter_rows<9>, filter_rows<10>, filter_rows<11>, filter_rows<12>,
#endif
  };
  const int groups = (rows + kFilterTiles - 1) / kFilterTiles;
  const int64_t ahead = kFilterLanes / groups;
  for (int g = 0; g < groups; ++g, next += channels * ahead) {
    const int first = rows * g / groups, count = rows * (g + 1) / groups - first;
    kRows[count - 1](x + first * stride, stride, weight, channels, next, ahead, out + first * kFilterLanes);
  }
}

constexpr FilterKernels kFilter = {kFilterLanes, filter_input, filter_products, filter_output};

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
