// float16 to and from float, rounded to nearest even.
#pragma once

#include "simd.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

CAPSEDGE_INLINE float widen_one(uint16_t h) {
  union { uint32_t bits; float value; } x, magic;
  // Exponent and mantissa, shifted to their place in a float, are the value divided by 2^112, subnormals included.
  magic.bits = (254u - 15u) << 23;
  x.bits = static_cast<uint32_t>(h & 0x7fffu) << 13;
  x.value *= magic.value;
  if (x.value >= 65536.0f) x.bits |= 255u << 23;
  x.bits |= static_cast<uint32_t>(h & 0x8000u) << 16;
  return x.value;
}

CAPSEDGE_INLINE uint16_t narrow_one(float value) {
  union { uint32_t bits; float value; } x, magic;
  x.value = value;
  const uint32_t sign = x.bits & 0x80000000u;
  x.bits ^= sign;
  uint32_t half;
  if (x.bits >= (127u + 16u) << 23) {
    half = x.bits > 255u << 23 ? 0x7e00 : 0x7c00;
  } else if (x.bits < 113u << 23) {
    // Subnormal: adding ½ lets the adder round; the ten bits below it are the result.
    magic.bits = ((127u - 15u) + (23u - 10u) + 1u) << 23;
    x.value += magic.value;
    half = x.bits - magic.bits;
  } else {
    const uint32_t odd = (x.bits >> 13) & 1u;
    half = (x.bits - (112u << 23) + 0xfffu + odd) >> 13;
  }
  return static_cast<uint16_t>(half | sign >> 16);
}

static inline void widen(const uint16_t* x, float* y, int64_t count) {
  int64_t i = 0;
#if defined(CAPSEDGE_AVX2) || defined(CAPSEDGE_AVX512)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#elif defined(CAPSEDGE_NEON)
  for (; i + 4 <= count; i += 4) vst1q_f32(y + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
#endif
  for (; i < count; ++i) y[i] = widen_one(x[i]);
}

static inline void narrow(const float* x, uint16_t* y, int64_t count) {
  int64_t i = 0;
#if defined(CAPSEDGE_AVX2) || defined(CAPSEDGE_AVX512)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(CAPSEDGE_NEON)
  for (; i + 4 <= count; i += 4) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
#endif
  for (; i < count; ++i) y[i] = narrow_one(x[i]);
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
