// Squash of poses that are contiguous (a group of lanes per pose) or followed by other axes (a thread per pose).
#pragma once

#include "device.h"

namespace capsedge {
namespace cuda {

CAPSEDGE_DEVICE float squash_factor(float n2, float epsilon) { return n2 / (1.0f + n2) / sqrtf(n2 + epsilon); }

template <typename T>
CAPSEDGE_DEVICE void squash_rows(const Block& b, const T* x, T* y, int64_t rows, int size, float epsilon, int group) {
  const int lane = b.thread() % group;
  const int64_t groups = b.blocks() * (b.threads() / group);
  // All groups loop equally often, because shuffles need whole warps.
  for (int64_t begin = static_cast<int64_t>(b.x()) * (b.threads() / group); begin < rows; begin += groups) {
    const int64_t row = begin + b.thread() / group;
    const bool mine = row < rows;
    float n2 = 0.0f;
    if (mine)
      for (int p = lane; p < size; p += group) {
        const float e = load<T>(x, row * size + p);
        n2 = fmaf(e, e, n2);
      }
    const float factor = squash_factor(b.group_sum(n2, group), epsilon);
    if (mine)
      for (int p = lane; p < size; p += group) store<T>(y, row * size + p, load<T>(x, row * size + p) * factor);
  }
}

template <typename T>
CAPSEDGE_DEVICE void squash_planes(const Block& b, const T* x, T* y, int64_t outer, int size, int64_t inner,
                                   float epsilon) {
  const int64_t step = b.blocks() * b.threads();
  for (int64_t at = static_cast<int64_t>(b.x()) * b.threads() + b.thread(); at < outer * inner; at += step) {
    const int64_t base = at / inner * size * inner + at % inner;
    float n2 = 0.0f;
    for (int p = 0; p < size; ++p) {
      const float e = load<T>(x, base + p * inner);
      n2 = fmaf(e, e, n2);
    }
    const float factor = squash_factor(n2, epsilon);
    for (int p = 0; p < size; ++p) store<T>(y, base + p * inner, load<T>(x, base + p * inner) * factor);
  }
}

}  // namespace cuda
}  // namespace capsedge
