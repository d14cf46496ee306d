// The building blocks of the kernels: a block of threads, groups of lanes, storage types. Compiled by nvcc, they are
// CUDA; compiled by a C++ compiler with CAPSEDGE_EMULATE, blocks run on the host (emulate.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "layer.h"

#ifdef CAPSEDGE_EMULATE
#define CAPSEDGE_LEVEL emulated
#define CAPSEDGE_WIDTH 4
#include "../cpu/simd/half.h"
#include "emulate.h"
#define CAPSEDGE_DEVICE inline
#else
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#define CAPSEDGE_DEVICE __device__ __forceinline__
#endif

namespace capsedge {
namespace cuda {

#ifndef CAPSEDGE_EMULATE

// The block in which the code runs. Every thread of a warp must call group_max and group_sum.
struct Block {
  CAPSEDGE_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  CAPSEDGE_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
  CAPSEDGE_DEVICE int x() const { return static_cast<int>(blockIdx.x); }
  CAPSEDGE_DEVICE int y() const { return static_cast<int>(blockIdx.y); }
  CAPSEDGE_DEVICE int64_t blocks() const { return gridDim.x; }
  CAPSEDGE_DEVICE void sync() const { __syncthreads(); }
  CAPSEDGE_DEVICE float group_max(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return fmaxf(a, b); });
  }
  CAPSEDGE_DEVICE float group_sum(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return a + b; });
  }
  CAPSEDGE_DEVICE float* shared() const {
    extern __shared__ __align__(16) float memory[];
    return memory;
  }
  // Copies sixteen bytes from global to shared memory, visible to this thread after wait_copies and to the others after
  // a subsequent barrier. Asynchronous from SM 80 on.
  CAPSEDGE_DEVICE void copy_async(float* to, const float* from) const { __pipeline_memcpy_async(to, from, 16); }
  CAPSEDGE_DEVICE void wait_copies() const {
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  // For clusters, SM 90 and newer: the blocks with the same x, one for each y. The launch ensures that neither another
  // GPU nor code compiled for one gets here.
  CAPSEDGE_DEVICE void sync_cluster() const {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __trap();
#endif
  }
  // The same place in the shared memory of the cluster's block `y`.
  CAPSEDGE_DEVICE const float* shared_of(const float* here, int y) const {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(here, y);
#else
    __trap();
    return here + y;
#endif
  }

 private:
  // The usual widths, without a test at each step.
  template <typename F>
  CAPSEDGE_DEVICE float reduce(float value, int width, F combine) const {
    if (width == kWarp) return steps<kWarp / 2>(value, combine);
    if (width == kWarp / 2) return steps<kWarp / 4>(value, combine);
#pragma unroll 1
    for (int offset = width / 2; offset; offset /= 2)
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
  }
  template <int FIRST, typename F>
  CAPSEDGE_DEVICE float steps(float value, F combine) const {
#pragma unroll
    for (int offset = FIRST; offset; offset /= 2)
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
  }
};

#endif

// float16 as storage.
struct Half {
  uint16_t bits;
};

#ifdef CAPSEDGE_EMULATE
inline float widen(Half h) { return emulated::widen_one(h.bits); }
inline Half narrow(float value) { return {emulated::narrow_one(value)}; }
#else
CAPSEDGE_DEVICE float widen(Half h) { return __half2float(__ushort_as_half(h.bits)); }
CAPSEDGE_DEVICE Half narrow(float value) { return {__half_as_ushort(__float2half_rn(value))}; }
#endif
CAPSEDGE_DEVICE float widen(float value) { return value; }
CAPSEDGE_DEVICE float widen(int8_t value) { return static_cast<float>(value); }

template <typename T>
CAPSEDGE_DEVICE float load(const void* data, int64_t at) {
  return widen(static_cast<const T*>(data)[at]);
}
template <typename T>
CAPSEDGE_DEVICE void store(void* data, int64_t at, float value);
template <>
CAPSEDGE_DEVICE void store<float>(void* data, int64_t at, float value) {
  static_cast<float*>(data)[at] = value;
}
template <>
CAPSEDGE_DEVICE void store<Half>(void* data, int64_t at, float value) {
  static_cast<Half*>(data)[at] = narrow(value);
}

// Four elements in one instruction; the address is a multiple of their size.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};
template <typename T>
CAPSEDGE_DEVICE void load4(const T* data, float* to) {
  const Four<T> four = *reinterpret_cast<const Four<T>*>(data);
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = widen(four.at[k]);
}

CAPSEDGE_DEVICE void store4(const float* four, float* to) {
  *reinterpret_cast<Four<float>*>(to) = {four[0], four[1], four[2], four[3]};
}

// For divisors between 2^-126 and 2^126; accurate to 2 units in the last place.
#ifdef CAPSEDGE_EMULATE
inline float quick_quotient(float a, float b) { return a / b; }
#else
CAPSEDGE_DEVICE float quick_quotient(float a, float b) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return a * reciprocal;
}
#endif

constexpr float kLowest = -3.402823466e38f;

}  // namespace cuda
}  // namespace capsedge
