// Votes of one child, made in cache: out[r][l][m] = Σ_k pose[r][k] · weight[k][l][m].
#pragma once

#include "level.h"
#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// R rows of the pose, each element in all lanes of a vector. K is the inner size, or 0 when only known at run time:
// then, and where there are too many for the registers, elements are spread when they are used.
template <int R, int K>
struct Rows {
  enum { kHeld = K != 0 && R * K <= 16 };
  const float* pose;
  int64_t row_stride;
  V held[kHeld ? R * K : 1];

  CAPSEDGE_INLINE_MEMBER Rows(const float* pose, int64_t row_stride) : pose(pose), row_stride(row_stride) {
    if (kHeld)
#pragma GCC unroll 16
      for (int i = 0; i < (kHeld ? R * K : 0); ++i) held[i] = splat(pose[i / (K ? K : 1) * row_stride + i % (K ? K : 1)]);
  }
  CAPSEDGE_INLINE_MEMBER V at(int r, int k) const { return kHeld ? held[kHeld ? r * K + k : 0] : splat(pose[r * row_stride + k]); }
};

// A strip of R rows and S vectors.
template <int R, int S, int K>
CAPSEDGE_INLINE void strip(const Rows<R, K>& rows, int inner, const float* weight, int64_t n, V (&votes)[R][S]) {
  const int count = K ? K : inner;
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
    const V w = load(weight + s * W);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) votes[r][s] = rows.at(r, 0) * w;
  }
#pragma GCC unroll 8
  for (int k = 1; k < count; ++k) {
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const V w = load(weight + k * n + s * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) votes[r][s] = madd(rows.at(r, k), w, votes[r][s]);
    }
  }
}

template <int R, int S, int K>
CAPSEDGE_INLINE void whole_strips(const Rows<R, K>& rows, int inner, const float* weight, int64_t n, int64_t& at,
                                  float* out) {
  for (; at + S * W <= n; at += S * W) {
    V votes[R][S];
    strip<R, S, K>(rows, inner, weight + at, n, votes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int s = 0; s < S; ++s) store(out + r * n + at + s * W, votes[r][s]);
  }
}

template <int R, int K>
CAPSEDGE_INLINE void vote_rows(const float* pose, int64_t row_stride, int inner, const float* weight, int64_t n,
                               float* out) {
  const Rows<R, K> rows(pose, row_stride);
  int64_t at = 0;
  whole_strips<R, (R >= 3 ? 2 : 4), K>(rows, inner, weight, n, at, out);
  whole_strips<R, 1, K>(rows, inner, weight, n, at, out);
  if (at < n) {
    // Reads on into the next row or the slack behind the weights; those lanes are not stored.
    V votes[R][1];
    strip<R, 1, K>(rows, inner, weight + at, n, votes);
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
