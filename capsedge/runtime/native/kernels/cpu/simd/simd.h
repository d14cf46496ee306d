// A vector of floats at one SIMD level. Included once by each level's translation unit, which defines CAPSEDGE_LEVEL (a
// namespace), CAPSEDGE_WIDTH and its instruction set's macro. Everything is static and lives in that namespace, and
// nothing from the C++ library is used, so the linker cannot share a function between levels.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(CAPSEDGE_AVX2) || defined(CAPSEDGE_AVX512)
#include <immintrin.h>
#elif defined(CAPSEDGE_NEON)
#include <arm_neon.h>
#endif

#define CAPSEDGE_INLINE static inline __attribute__((always_inline))
#define CAPSEDGE_INLINE_MEMBER inline __attribute__((always_inline))

namespace capsedge {
namespace CAPSEDGE_LEVEL {

enum { W = CAPSEDGE_WIDTH };
typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t VI __attribute__((vector_size(4 * W)));
typedef uint32_t VU __attribute__((vector_size(4 * W)));  // for bits: it wraps
typedef float VUnaligned __attribute__((vector_size(4 * W), aligned(4), may_alias));

CAPSEDGE_INLINE V load(const float* p) { return *reinterpret_cast<const VUnaligned*>(p); }
CAPSEDGE_INLINE void store(float* p, V x) { *reinterpret_cast<VUnaligned*>(p) = x; }
CAPSEDGE_INLINE V splat(float x) { return x - V{}; }
CAPSEDGE_INLINE VI splat_int(int32_t x) { return x - VI{}; }
CAPSEDGE_INLINE V select(VI mask, V yes, V no) { return mask ? yes : no; }
CAPSEDGE_INLINE V max(V a, V b) { return a > b ? a : b; }
CAPSEDGE_INLINE V abs(V x) { return reinterpret_cast<V>(reinterpret_cast<VI>(x) & splat_int(0x7fffffff)); }

CAPSEDGE_INLINE VI lane_numbers() {
  VI lanes;
  for (int i = 0; i < W; ++i) lanes[i] = i;
  return lanes;
}
// All ones in lanes below count.
CAPSEDGE_INLINE VI lanes_below(int count) { return lane_numbers() < splat_int(count); }

// Whether any lane of a comparison holds.
CAPSEDGE_INLINE bool any(VI mask) {
#if defined(CAPSEDGE_AVX512)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(CAPSEDGE_AVX2)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < W; ++i) found |= mask[i];
  return found != 0;
#endif
}

// The first count lanes, 0 < count < W; the others read as zero and are not touched in memory.
#if defined(CAPSEDGE_AVX512)
CAPSEDGE_INLINE __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
CAPSEDGE_INLINE V load_some(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
CAPSEDGE_INLINE void store_some(float* p, V x, int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), x); }
#elif defined(CAPSEDGE_AVX2)
CAPSEDGE_INLINE __m256i first_lanes(int64_t count) {
  return reinterpret_cast<__m256i>(lanes_below(static_cast<int>(count)));
}
CAPSEDGE_INLINE V load_some(const float* p, int64_t count) { return _mm256_maskload_ps(p, first_lanes(count)); }
CAPSEDGE_INLINE void store_some(float* p, V x, int64_t count) { _mm256_maskstore_ps(p, first_lanes(count), x); }
#else
CAPSEDGE_INLINE V load_some(const float* p, int64_t count) {
  V x{};
  for (int i = 0; i < W; ++i)
    if (i < count) x[i] = p[i];
  return x;
}
CAPSEDGE_INLINE void store_some(float* p, V x, int64_t count) {
  for (int i = 0; i < W; ++i)
    if (i < count) p[i] = x[i];
}
#endif

// madd(a, b, c) = a·b + c, with a single rounding if the level has that instruction.
#if defined(CAPSEDGE_AVX512)
CAPSEDGE_INLINE V madd(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
CAPSEDGE_INLINE V sqrt(V x) { return _mm512_sqrt_ps(x); }
CAPSEDGE_INLINE float sum(V x) { return _mm512_reduce_add_ps(x); }
CAPSEDGE_INLINE float maximum(V x) { return _mm512_reduce_max_ps(x); }
#elif defined(CAPSEDGE_AVX2)
CAPSEDGE_INLINE V madd(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
CAPSEDGE_INLINE V sqrt(V x) { return _mm256_sqrt_ps(x); }
CAPSEDGE_INLINE float sum(V x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
CAPSEDGE_INLINE float maximum(V x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
#elif defined(CAPSEDGE_NEON)
CAPSEDGE_INLINE V madd(V a, V b, V c) { return vfmaq_f32(c, a, b); }
CAPSEDGE_INLINE V sqrt(V x) { return vsqrtq_f32(x); }
CAPSEDGE_INLINE float sum(V x) { return vaddvq_f32(x); }
CAPSEDGE_INLINE float maximum(V x) { return vmaxvq_f32(x); }
#else
CAPSEDGE_INLINE V madd(V a, V b, V c) { return a * b + c; }
CAPSEDGE_INLINE V sqrt(V x) {
  for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
CAPSEDGE_INLINE float sum(V x) {
  float total = 0;
  for (int i = 0; i < W; ++i) total += x[i];
  return total;
}
CAPSEDGE_INLINE float maximum(V x) {
  float top = x[0];
  for (int i = 1; i < W; ++i) top = x[i] > top ? x[i] : top;
  return top;
}
#endif

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
