// Votes of one child, made in cache: out[r][l][m] = Σ_k pose[r][k] · weight[k][l][m].
#pragma once

#include "level.h"
#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// A strip of R rows and S vectors. K is the inner size, or 0 when only known at run time.
template <int R, int S, int K>
CAPSEDGE_INLINE void strip(const float* pose, int64_t row_stride, int inner, const float* weight, int64_t n,
                           V (&votes)[R][S]) {
  const int count = K ? K : inner;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const V x = splat(pose[r * row_stride]);
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) votes[r][s] = x * load(weight + s * W);
  }
#pragma GCC unroll 8
  for (int k = 1; k < count; ++k) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V x = splat(pose[r * row_stride + k]);
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) votes[r][s] = madd(x, load(weight + k * n + s * W), votes[r][s]);
    }
  }
}

template <int R, int S, int K>
CAPSEDGE_INLINE void whole_strips(const float* pose, int64_t row_stride, int inner, const float* weight, int64_t n,
                                  int64_t& at, float* out) {
  for (; at + S * W <= n; at += S * W) {
    V votes[R][S];
    strip<R, S, K>(pose, row_stride, inner, weight + at, n, votes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) store(out + r * n + at + s * W, votes[r][s]);
  }
}

template <int R, int K>
CAPSEDGE_INLINE void vote_rows(const float* pose, int64_t row_stride, int inner, const float* weight, int64_t n,
                               float* out) {
  int64_t at = 0;
  whole_strips<R, (R >= 3 ? 2 : 4), K>(pose, row_stride, inner, weight, n, at, out);
  whole_strips<R, 1, K>(pose, row_stride, inner, weight, n, at, out);
  if (at < n) {
    // Reads on into the next row or the slack behind the weights; those lanes are not stored.
    V votes[R][1];
    strip<R, 1, K>(pose, row_stride, inner, weight + at, n, votes);
    for (int r = 0; r < R; ++r) store_some(out + r * n + at, votes[r][0], n - at);
  }
}

template <int K>
CAPSEDGE_INLINE void vote_tile(const float* pose, int64_t row_stride, int rows, int inner, const float* weight,
                               int64_t n, float* out) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) vote_rows<4, K>(pose + r * row_stride, row_stride, inner, weight, n, out + r * n);
  const float* rest = pose + r * row_stride;
  switch (rows - r) {
    case 3: vote_rows<3, K>(rest, row_stride, inner, weight, n, out + r * n); break;
    case 2: vote_rows<2, K>(rest, row_stride, inner, weight, n, out + r * n); break;
    case 1: vote_rows<1, K>(rest, row_stride, inner, weight, n, out + r * n); break;
    default: break;
  }
}

// rows: of the pose matrix, or of as many units as share the weights.
static void make_votes(const Votes& v, const float* pose, int64_t row_stride, int rows, int child, float* out) {
  const int64_t n = static_cast<int64_t>(v.columns) * v.parents;
  const Child& place = v.children[child];
  const float* x = pose + static_cast<int64_t>(place.capsule) * v.pose_size;
  const float* weight = v.weight + place.weight * n * v.inner;
  switch (v.inner) {
    case 4: vote_tile<4>(x, row_stride, rows, 4, weight, n, out); break;
    case 8: vote_tile<8>(x, row_stride, rows, 8, weight, n, out); break;
    default: vote_tile<0>(x, row_stride, rows, v.inner, weight, n, out); break;
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
