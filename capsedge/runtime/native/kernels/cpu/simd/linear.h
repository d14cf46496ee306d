// Sums of a window's votes with equal weights, which is a matrix product, and layer normalization of short rows.
#pragma once

#include "level.h"
#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// Rows of the product that share one reading of the weights: as many as there are registers for their sums.
#if defined(CAPSEDGE_AVX512) || defined(CAPSEDGE_NEON)
enum { kLinearRows = 12 };
#else
enum { kLinearRows = 6 };
#endif

// out[r][lane] = Σ over the window's lines, children and inner indices, for R rows and S vectors of a strip.
template <int R, int S, int K>
CAPSEDGE_INLINE void linear_tile(const LinearPass& pass, const float* const* rows, const float* weight, int width,
                                 float* out) {
  const int inner = K ? K : pass.inner;
  V sums[R][S] = {};
  for (int line = 0; line < pass.lines; ++line) {
    int64_t at = line * pass.line_stride;
    for (int child = 0; child < pass.line_children; ++child, at += pass.pose_size)
#pragma GCC unroll 4
      for (int k = 0; k < inner; ++k, weight += width) {
        V w[S];
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) w[s] = load(weight + s * W);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const V x = splat(rows[r][at + k]);
#pragma GCC unroll 2
          for (int s = 0; s < S; ++s) sums[r][s] = madd(x, w[s], sums[r][s]);
        }
      }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) store(out + r * pass.out_stride + s * W, sums[r][s]);
}

template <int R, int K>
static void linear_strip(const LinearPass& pass, const float* const* rows, const float* weight, int width,
                         float* out) {
  if (width < 2 * W) return linear_tile<R, 1, K>(pass, rows, weight, width, out);
  for (int at = 0; at < width; at += 2 * W) linear_tile<R, 2, K>(pass, rows, weight + at, width, out + at);
}

template <int R>
static void linear_rows(const LinearPass& pass, const float* const* rows, float* out) {
  const float* weight = pass.weight;
  const int64_t inner = static_cast<int64_t>(pass.lines) * pass.line_children * pass.inner;
  for (int64_t at = 0; at < pass.lanes; at += kStrip) {
    const int width = pass.lanes - at > kStrip / 2 ? kStrip : kStrip / 2;
    if (pass.inner == 4) {
      linear_strip<R, 4>(pass, rows, weight, width, out + at);
    } else {
      linear_strip<R, 0>(pass, rows, weight, width, out + at);
    }
    weight += inner * width;
  }
}

static void linear(const LinearPass& pass, const float* const* rows, int count, float* out) {
  for (; count >= kLinearRows; count -= kLinearRows, rows += kLinearRows, out += kLinearRows * pass.out_stride)
    linear_rows<kLinearRows>(pass, rows, out);
  for (; count >= 4; count -= 4, rows += 4, out += 4 * pass.out_stride) linear_rows<4>(pass, rows, out);
  for (; count > 0; --count, ++rows, out += pass.out_stride) linear_rows<1>(pass, rows, out);
}

static void normalize_rows(const float* x, float* y, int64_t rows, int64_t size, const float* scale,
                           const float* bias, float epsilon) {
  const int64_t whole = size / W * W, left = size - whole;
  for (int64_t row = 0; row < rows; ++row, x += size, y += size) {
    // The mean, computed from differences to one element, so it is exact if all elements are equal.
    const V shift = splat(x[0]);
    V total{};
    for (int64_t p = 0; p < whole; p += W) total = total + (load(x + p) - shift);
    if (left)
      total = total + select(lanes_below(static_cast<int>(left)), load_some(x + whole, left) - shift, V{});
    const V mean = shift + splat(sum(total) / static_cast<float>(size));
    V squares{};
    for (int64_t p = 0; p < whole; p += W) {
      const V d = load(x + p) - mean;
      squares = madd(d, d, squares);
    }
    if (left) {
      const V d = select(lanes_below(static_cast<int>(left)), load_some(x + whole, left) - mean, V{});
      squares = madd(d, d, squares);
    }
    const V factor = splat(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + epsilon));
    for (int64_t p = 0; p < whole; p += W)
      store(y + p, madd((load(x + p) - mean) * factor, load(scale + p), load(bias + p)));
    if (left)
      store_some(y + whole,
                 madd((load_some(x + whole, left) - mean) * factor, load_some(scale + whole, left),
                      load_some(bias + whole, left)),
                 left);
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
