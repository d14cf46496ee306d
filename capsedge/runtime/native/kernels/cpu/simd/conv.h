// Convolution of 8-bit integers: sums of a few positions and a few vectors of channels in registers, and their
// conversion back to 8 bits. A lane adds kDot products at once: four of bytes if the processor has an instruction for
// it, otherwise two of 16-bit integers, so nothing saturates.
#pragma once

#include "level.h"
#include "simd.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace capsedge {
namespace CAPSEDGE_LEVEL {

#if defined(CAPSEDGE_TILES)
enum { kConvPositions = 16, kConvVectors = 4 };
#elif defined(CAPSEDGE_AVX512)
enum { kConvPositions = 6, kConvVectors = 4 };
#elif defined(CAPSEDGE_AVX2)
enum { kConvPositions = 4, kConvVectors = 2 };
#elif defined(CAPSEDGE_NEON)
enum { kConvPositions = 4, kConvVectors = 4 };
#else
enum { kConvPositions = 2, kConvVectors = 4 };
#endif
enum { kConvChannels = kConvVectors * W };

// Wraps around, as the instructions do, because a bias may be any number.
CAPSEDGE_INLINE VI wrapping_sum(VI a, VI b) { return reinterpret_cast<VI>(reinterpret_cast<VU>(a) + reinterpret_cast<VU>(b)); }

#if defined(CAPSEDGE_VNNI)
enum { kDot = 4 };
typedef uint8_t ConvInput;
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) {
  return reinterpret_cast<VI>(_mm512_loadu_si512(reinterpret_cast<const void*>(p)));
}
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  return reinterpret_cast<VI>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(x),
                                                  reinterpret_cast<__m512i>(w)));
}
#else
enum { kDot = 2 };
typedef int16_t ConvInput;
#if defined(CAPSEDGE_AVX512)
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) {
  return reinterpret_cast<VI>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  return wrapping_sum(sum, reinterpret_cast<VI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(w))));
}
#elif defined(CAPSEDGE_AVX2)
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) {
  return reinterpret_cast<VI>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  return wrapping_sum(sum, reinterpret_cast<VI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(w))));
}
#elif defined(CAPSEDGE_NEON)
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) { return reinterpret_cast<VI>(vmovl_s8(vld1_s8(p))); }
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  const int16x8_t a = reinterpret_cast<int16x8_t>(x), b = reinterpret_cast<int16x8_t>(w);
  return wrapping_sum(sum, reinterpret_cast<VI>(
                               vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b))));
}
#elif defined(__SSE2__)
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<VI>(_mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8));
}
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  return wrapping_sum(sum, reinterpret_cast<VI>(_mm_madd_epi16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(w))));
}
#else
typedef int8_t Pairs8 __attribute__((vector_size(2 * W)));
typedef int16_t Pairs16 __attribute__((vector_size(4 * W)));
CAPSEDGE_INLINE VI load_conv_weight(const int8_t* p) {
  Pairs8 pairs;
  __builtin_memcpy(&pairs, p, sizeof pairs);
  return reinterpret_cast<VI>(__builtin_convertvector(pairs, Pairs16));
}
CAPSEDGE_INLINE VI dot(VI sum, VI x, VI w) {
  // The two halves of a lane, in either order.
  const auto low = [](VI v) { return reinterpret_cast<VI>(reinterpret_cast<VU>(v) << 16) >> 16; };
  return wrapping_sum(wrapping_sum(sum, (x >> 16) * (w >> 16)), low(x) * low(w));
}
#endif
#endif

#ifndef CAPSEDGE_TILES
template <int P>
CAPSEDGE_INLINE void conv_tile(const ConvPass& pass, int first) {
  enum { N = kConvVectors };
  int32_t* out = pass.sums + static_cast<int64_t>(first) * kConvChannels;
  VI sums[P][N];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v)
      __builtin_memcpy(&sums[p][v], (pass.start ? pass.start : out + p * kConvChannels) + v * W, sizeof(VI));
  const int8_t* w = pass.weight;
  const int8_t* ahead = pass.ahead;
  const ConvInput* input = static_cast<const ConvInput*>(pass.input);
  for (int s = 0; s < pass.segments; ++s) {
    const ConvInput* x[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) x[p] = input + pass.windows[first + p] + pass.offsets[s];
#pragma GCC unroll 1
    for (int k = 0; k < pass.length; k += kDot, w += kDot * kConvChannels) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += 64;
      VI weight[N];
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) weight[v] = load_conv_weight(w + v * kDot * W);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        int32_t values;
        __builtin_memcpy(&values, x[p] + k, sizeof values);
        const VI spread = splat_int(values);
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) sums[p][v] = dot(sums[p][v], spread, weight[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) __builtin_memcpy(out + p * kConvChannels + v * W, &sums[p][v], sizeof(VI));
}

static void convolve(const ConvPass& whole) {
  ConvPass pass = whole;
  int first = 0;
  for (; first + kConvPositions <= pass.positions; first += kConvPositions) {
    conv_tile<kConvPositions>(pass, first);
    // The next tile prefetches the rest.
    pass.ahead += static_cast<int64_t>(pass.segments) * pass.length / kDot * 64;
  }
  switch (pass.positions - first) {
#if defined(CAPSEDGE_AVX512)
    case 5: conv_tile<5>(pass, first); break;
    case 4: conv_tile<4>(pass, first); break;
#endif
    case 3: conv_tile<3>(pass, first); break;
    case 2: conv_tile<2>(pass, first); break;
    case 1: conv_tile<1>(pass, first); break;
    default: break;
  }
}
#endif

// y = round(float(sum) · factor) + zero point, within 0..255.
static void requantize(const int32_t* sums, const float* factors, int32_t zero_point, int positions, uint8_t* y) {
  const float zero = static_cast<float>(zero_point);
  const V lowest = splat(-zero), highest = splat(255.0f - zero);
  // Adding 1.5 · 2^23 rounds to an integer, ties to even, and leaves it in the low bits. The bounds are integers, so
  // clamping before rounding equals clamping after it.
  const V shifter = splat(12582912.0f);
  for (int p = 0; p < positions; ++p)
    for (int v = 0; v < kConvChannels; v += W) {
      VI sum;
      __builtin_memcpy(&sum, sums + p * kConvChannels + v, sizeof sum);
      V value = __builtin_convertvector(sum, V) * load(factors + v);
      value = max(value, lowest);
      value = value < highest ? value : highest;
      const VI rounded = reinterpret_cast<VI>(value + shifter) - reinterpret_cast<VI>(shifter) + zero_point;
#if defined(CAPSEDGE_AVX512)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + p * kConvChannels + v),
                       _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(rounded)));
#else
      for (int i = 0; i < W; ++i) y[p * kConvChannels + v + i] = static_cast<uint8_t>(rounded[i]);
#endif
    }
}

#ifndef CAPSEDGE_TILES
constexpr ConvKernels kConv = {kDot, kConvPositions, kConvChannels, convolve, requantize};
#endif

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
