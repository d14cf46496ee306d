// Votes of one child, computed in cache: out[r][l][m] = Σ_k pose[r][k] · weight[k][l][m].
#pragma once

#include "level.h"
#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// R rows of the pose. K is the inner size, or 0 if it is only known at run time. A few elements are kept broadcast in
// vectors; more are copied side by side, so their addresses need no arithmetic, and broadcast when they are used.
template <int R, int K>
struct Rows {
  enum { kCount = R * K, kHeld = K != 0 && kCount <= 16, kCopied = K != 0 && !kHeld };
  const float* pose;
  int64_t row_stride;
  V held[kHeld ? kCount : 1];
  float copied[kCopied ? kCount : 1];

  CAPSEDGE_INLINE_MEMBER Rows(const float* pose, int64_t row_stride) : pose(pose), row_stride(row_stride) {
    if (K == 0) return;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) {
        if (kHeld) held[kHeld ? r * K + k : 0] = splat(pose[r * row_stride + k]);
        if (kCopied) copied[kCopied ? r * K + k : 0] = pose[r * row_stride + k];
      }
  }
  CAPSEDGE_INLINE_MEMBER V at(int r, int k) const {
    if (kHeld) return held[kHeld ? r * K + k : 0];
    if (kCopied) return splat(copied[kCopied ? r * K + k : 0]);
    return splat(pose[r * row_stride + k]);
  }
};

// W weights as floats.
CAPSEDGE_INLINE V load_weight(const float* p) { return load(p); }
CAPSEDGE_INLINE V load_weight(const int8_t* p) {
#if defined(CAPSEDGE_AVX512)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(CAPSEDGE_AVX2)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(CAPSEDGE_NEON)
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#else
  V x;
  for (int i = 0; i < W; ++i) x[i] = static_cast<float>(p[i]);
  return x;
#endif
}

// R rows and S vectors; the weight's rows are `stride` apart. INT8 weights have a scale for each lane.
template <int R, int S, int K, typename T>
CAPSEDGE_INLINE void strip(const Rows<R, K>& rows, int inner, const T* weight, int stride, const float* scale,
                           int64_t lane, V (&votes)[R][S]) {
  const int count = K ? K : inner;
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
    const V w = load_weight(weight + s * W);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) votes[r][s] = rows.at(r, 0) * w;
  }
#pragma GCC unroll 8
  for (int k = 1; k < count; ++k) {
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const V w = load_weight(weight + k * stride + s * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) votes[r][s] = madd(rows.at(r, k), w, votes[r][s]);
    }
  }
  if (sizeof(T) == sizeof(float)) return;
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
    const V factor = load(scale + lane + s * W);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) votes[r][s] = votes[r][s] * factor;
  }
}

// Floats from one row of the weight to the next in a strip of the last `left` columns.
CAPSEDGE_INLINE int strip_width(int64_t left) { return left > kStrip / 2 ? kStrip : kStrip / 2; }

template <int R, int K, typename T>
CAPSEDGE_INLINE void vote_rows(const float* pose, int64_t row_stride, int inner, const T* weight, const float* scale,
                               int64_t n, int64_t step, float* out) {
  const Rows<R, K> rows(pose, row_stride);
  const int count = K ? K : inner;
  const int64_t strips = n / kStrip * kStrip;
  const T* last = weight + count * strips;
  const int width = strip_width(n - strips);
  if (const int64_t left = n % W) {
    // The last lanes come first, in a whole vector. What it writes beyond its row is the beginning of the next row,
    // which is written afterwards, or the space after the last row.
    const int64_t at = n - left;
    V votes[R][1];
    strip<R, 1, K>(rows, inner, last + (at - strips), width, scale, at, votes);
    for (int r = 0; r < R; ++r) store(out + r * step + at, votes[r][0]);
  }
  for (int64_t at = 0; at < strips; at += kStrip, weight += count * kStrip) {
    enum { S = 2 };
#pragma GCC unroll 1
    for (int sub = 0; sub < kStrip; sub += S * W) {
      V votes[R][S];
      strip<R, S, K>(rows, inner, weight + sub, kStrip, scale, at + sub, votes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int s = 0; s < S; ++s) store(out + r * step + at + sub + s * W, votes[r][s]);
    }
  }
  for (int64_t at = strips; at + W <= n; at += W) {
    V votes[R][1];
    strip<R, 1, K>(rows, inner, last + (at - strips), width, scale, at, votes);
    for (int r = 0; r < R; ++r) store(out + r * step + at, votes[r][0]);
  }
}

// Any number of rows of one weight; the votes of two rows are `step` apart.
template <int K, typename T>
CAPSEDGE_INLINE void all_rows(const float* x, int64_t row_stride, int rows, int inner, const T* weight,
                              const float* scale, int64_t n, int64_t step, float* out) {
  int r = 0;
  for (; r + 4 <= rows; r += 4)
    vote_rows<4, K>(x + r * row_stride, row_stride, inner, weight, scale, n, step, out + r * step);
  x += r * row_stride;
  out += r * step;
  switch (rows - r) {
    case 3: vote_rows<3, K>(x, row_stride, inner, weight, scale, n, step, out); break;
    case 2: vote_rows<2, K>(x, row_stride, inner, weight, scale, n, step, out); break;
    case 1: vote_rows<1, K>(x, row_stride, inner, weight, scale, n, step, out); break;
    default: break;
  }
}

template <int K, typename T>
CAPSEDGE_INLINE void vote_tile(const Votes& v, const T* weights, const float* pose, int64_t row_stride, int rows,
                               int first, int count, float* out) {
  const int64_t n = static_cast<int64_t>(v.columns) * v.parents;
  if (v.one_weight) {
    // The children are the rows, so weights are read once for four of them.
    all_rows<K>(pose + static_cast<int64_t>(first) * v.pose_size, v.pose_size, count, v.inner, weights, v.scale, n,
                v.tile_stride, out);
    return;
  }
  for (int c = 0; c < count; ++c, out += v.tile_stride) {
    const Child& place = v.children[first + c];
    const float* x = pose + static_cast<int64_t>(place.capsule) * v.pose_size;
    all_rows<K>(x, row_stride, rows, v.inner, weights + place.weight * v.weight_size, v.scale, n, n, out);
  }
}

// Votes of `count` children into a tile. rows: of the pose matrix, or of the units that share the weights.
static void make_votes(const Votes& v, const float* pose, int64_t row_stride, int rows, int first, int count,
                       float* out) {
  if (v.bytes) {
    switch (v.inner) {
      case 8: vote_tile<8>(v, v.bytes, pose, row_stride, rows, first, count, out); break;
      default: vote_tile<0>(v, v.bytes, pose, row_stride, rows, first, count, out); break;
    }
    return;
  }
  switch (v.inner) {
    case 4: vote_tile<4>(v, v.weight, pose, row_stride, rows, first, count, out); break;
    case 8: vote_tile<8>(v, v.weight, pose, row_stride, rows, first, count, out); break;
    default: vote_tile<0>(v, v.weight, pose, row_stride, rows, first, count, out); break;
  }
}

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourPlaces __attribute__((vector_size(16)));

// Selects elements of two vectors by index, 0 to 7.
template <int A, int B, int C, int D>
CAPSEDGE_INLINE Four chosen(Four x, Four y) {
#ifdef __clang__
  return __builtin_shufflevector(x, y, A, B, C, D);
#else
  return __builtin_shuffle(x, y, FourPlaces{A, B, C, D});
#endif
}

// [rows][columns] to [columns][rows], with `stride` floats from one row to the next, and `to_stride` in the result.
CAPSEDGE_INLINE void transpose(const float* from, int64_t stride, int rows, int columns, float* to, int64_t to_stride) {
  int m = 0;
  for (; m + 4 <= rows; m += 4) {
    int h = 0;
    for (; h + 4 <= columns; h += 4) {
      Four row[4], half[4];
      for (int k = 0; k < 4; ++k) __builtin_memcpy(&row[k], from + (m + k) * stride + h, sizeof(Four));
      half[0] = chosen<0, 4, 1, 5>(row[0], row[1]);
      half[1] = chosen<0, 4, 1, 5>(row[2], row[3]);
      half[2] = chosen<2, 6, 3, 7>(row[0], row[1]);
      half[3] = chosen<2, 6, 3, 7>(row[2], row[3]);
      row[0] = chosen<0, 1, 4, 5>(half[0], half[1]);
      row[1] = chosen<2, 3, 6, 7>(half[0], half[1]);
      row[2] = chosen<0, 1, 4, 5>(half[2], half[3]);
      row[3] = chosen<2, 3, 6, 7>(half[2], half[3]);
      for (int k = 0; k < 4; ++k) __builtin_memcpy(to + (h + k) * to_stride + m, &row[k], sizeof(Four));
    }
    for (; h < columns; ++h)
      for (int k = 0; k < 4; ++k) to[h * to_stride + m + k] = from[(m + k) * stride + h];
  }
  for (; m < rows; ++m)
    for (int h = 0; h < columns; ++h) to[h * to_stride + m] = from[m * stride + h];
}

// Adds each child's constant to its votes for `units` units. Beyond a vote's end, vectors add zero.
static void add_constant(const Votes& v, int units, int first, int count, float* votes) {
  const int64_t n = static_cast<int64_t>(v.columns) * v.parents;
  for (int c = 0; c < count; ++c, votes += v.tile_stride) {
    const float* constant = v.bias + (first + c) * v.bias_stride;
    for (int u = 0; u < units; ++u)
      for (int64_t at = 0; at < n; at += W)
        store(votes + u * n + at, load(votes + u * n + at) + load(constant + at));
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
