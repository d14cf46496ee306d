// Squash of poses that are contiguous, or followed by other axes.
#pragma once

#include "math.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

CAPSEDGE_INLINE V squash_factor(V n2, float epsilon) { return n2 / (n2 + 1.0f) * rsqrt(n2 + epsilon); }

CAPSEDGE_INLINE float norm2(const float* x, int64_t size) {
  V total{};
  int64_t p = 0;
  for (; p + W <= size; p += W) {
    const V e = load(x + p);
    total = madd(e, e, total);
  }
  float n2 = sum(total);
  for (; p < size; ++p) n2 += x[p] * x[p];
  return n2;
}

CAPSEDGE_INLINE void scale(const float* x, float* y, int64_t size, float factor) {
  int64_t p = 0;
  for (; p + W <= size; p += W) store(y + p, load(x + p) * factor);
  for (; p < size; ++p) y[p] = x[p] * factor;
}

typedef float Pose4 __attribute__((vector_size(16)));
typedef float Pose8 __attribute__((vector_size(32)));
typedef float Pose16 __attribute__((vector_size(64)));

// W poses of the usual sizes, each in its own vector, whatever the width of the level's vectors.
template <typename Pose>
CAPSEDGE_INLINE void squash_small(const float* x, float* y, float epsilon) {
  enum { S = sizeof(Pose) / sizeof(float) };
  float n2[W], factor[W];
  Pose e;
  for (int row = 0; row < W; ++row) {
    __builtin_memcpy(&e, x + row * S, sizeof e);
    const Pose squared = e * e;
    float total = 0;
#pragma GCC unroll 16
    for (int p = 0; p < S; ++p) total += squared[p];
    n2[row] = total;
  }
  store(factor, squash_factor(load(n2), epsilon));
  for (int row = 0; row < W; ++row) {
    __builtin_memcpy(&e, x + row * S, sizeof e);
    e = e * factor[row];
    __builtin_memcpy(y + row * S, &e, sizeof e);
  }
}

static void squash_rows(const float* x, float* y, int64_t rows, int64_t size, float epsilon) {
  int64_t row = 0;
  for (; row + W <= rows; row += W, x += W * size, y += W * size) {
    if (size == 4) {
      squash_small<Pose4>(x, y, epsilon);
    } else if (size == 8) {
      squash_small<Pose8>(x, y, epsilon);
    } else if (size == 16) {
      squash_small<Pose16>(x, y, epsilon);
    } else {
      float n2[W], factor[W];
      for (int i = 0; i < W; ++i) n2[i] = norm2(x + i * size, size);
      store(factor, squash_factor(load(n2), epsilon));
      for (int i = 0; i < W; ++i) scale(x + i * size, y + i * size, size, factor[i]);
    }
  }
  for (; row < rows; ++row, x += size, y += size)
    scale(x, y, size, squash_factor(splat(norm2(x, size)), epsilon)[0]);
}

static void squash_planes(const float* x, float* y, int64_t outer, int64_t size, int64_t inner, float epsilon) {
  for (int64_t o = 0; o < outer; ++o, x += size * inner, y += size * inner) {
    for (int64_t at = 0; at < inner; at += W) {
      const int64_t count = inner - at;
      V n2{};
      for (int64_t p = 0; p < size; ++p) {
        const float* from = x + p * inner + at;
        const V e = count >= W ? load(from) : load_some(from, count);
        n2 = madd(e, e, n2);
      }
      const V factor = squash_factor(n2, epsilon);
      for (int64_t p = 0; p < size; ++p) {
        const float* from = x + p * inner + at;
        float* to = y + p * inner + at;
        if (count >= W) {
          store(to, load(from) * factor);
        } else {
          store_some(to, load_some(from, count) * factor, count);
        }
      }
    }
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
