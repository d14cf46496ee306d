#include <stdint.h>
#if __STDC_HOSTED__
#include <math.h>
#include <string.h>
#else /* -ffreestanding: a compiler without a C library; who links gives memcpy and memset */
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int value, size_t n);
#define memcpy(to, from, n) __builtin_memcpy(to, from, n)
#define memset(to, value, n) __builtin_memset(to, value, n)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif
#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#endif

#if defined(__GNUC__)
#define CAPS_ALIGNED __attribute__((aligned(16)))
#define CAPS_INLINE static inline __attribute__((always_inline, unused))
#define CAPS_FUNCTION static __attribute__((unused))
#define CAPS_RESTRICT __restrict
#else
#define CAPS_ALIGNED
#define CAPS_INLINE static
#define CAPS_FUNCTION static
#define CAPS_RESTRICT
#endif

/* Before a loop of few and known steps: compilers unroll it at -O2 too. */
#if defined(__clang__)
#define CAPS_UNROLL _Pragma("clang loop unroll_count(8)")
#elif defined(__GNUC__)
#define CAPS_UNROLL _Pragma("GCC unroll 8")
#else
#define CAPS_UNROLL
#endif

/* Floats in one register: 4, and 8 or 16 where the target has such. A lane computes what the portable code computes, in
   the same order. */
#if (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9)) && !defined(CAPS_PORTABLE) &&                 \
    (defined(__SSE2__) || defined(__wasm_simd128__) || (defined(__ARM_NEON) && defined(__aarch64__)) ||        \
     (defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)))
#define CAPS_VECTORS 1
#define CAPS_VECTOR(n)                                                                                         \
  typedef float caps_float##n __attribute__((vector_size(4 * n)));                                             \
  typedef int32_t caps_int##n __attribute__((vector_size(4 * n)));                                             \
  CAPS_INLINE caps_float##n caps_load##n(const float *p) {                                                     \
    caps_float##n v;                                                                                           \
    memcpy(&v, p, 4 * n);                                                                                      \
    return v;                                                                                                  \
  }                                                                                                            \
  CAPS_INLINE void caps_store##n(float *p, caps_float##n v) { memcpy(p, &v, 4 * n); }
/* Compilers would read a vector again in every product that it is part of. */
#if defined(__AVX512VL__)
#define CAPS_KEEP(v) __asm__("" : "+v"(v))
#elif defined(__SSE2__)
#define CAPS_KEEP(v) __asm__("" : "+x"(v))
#else
#define CAPS_KEEP(v) (void)(v)
#endif
/* By lanes: a where the test holds, b elsewhere. */
#define CAPS_CHOOSE(n, test, a, b) (caps_float##n)(((caps_int##n)(a) & (test)) | ((caps_int##n)(b) & ~(test)))
CAPS_VECTOR(4)
#if defined(__AVX2__)
#define CAPS_VECTORS8 1
CAPS_VECTOR(8)
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define CAPS_VECTORS16 1
CAPS_VECTOR(16)
#endif
#endif

/* The square root, correctly rounded, without libm. */
CAPS_INLINE float caps_sqrt(float x) {
#if !defined(CAPS_PORTABLE) && defined(__SSE2__)
  float y;
  __asm__("sqrtss %1, %0" : "=x"(y) : "x"(x));
  return y;
#elif !defined(CAPS_PORTABLE) && defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4)
  float y;
  __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
  return y;
#elif !defined(CAPS_PORTABLE) && defined(__aarch64__)
  float y;
  __asm__("fsqrt %s0, %s1" : "=w"(y) : "w"(x));
  return y;
#elif !defined(CAPS_PORTABLE) && defined(__riscv_flen)
  float y;
  __asm__("fsqrt.s %0, %1" : "=f"(y) : "f"(x));
  return y;
#elif defined(__wasm__)
  return __builtin_sqrtf(x);
#else
  union { float f; uint32_t u; } v;
  uint64_t m, r = 0, bit;
  int32_t e;
  v.f = x;
  if (!(x > 0.0f) || v.u >= 0x7f800000u) return x < 0.0f ? (x - x) / (x - x) : x;
  e = (int32_t)(v.u >> 23);
  m = v.u & 0x7fffffu;
  if (e) m |= 0x800000u;
  else for (e = 1; !(m & 0x800000u); e--) m <<= 1;
  e -= 127;
  m <<= e & 1 ? 26 : 25; /* the root has 25 bits: one more than the result, to round by */
  e = (e - (e & 1)) / 2;
  for (bit = (uint64_t)1 << 48; bit; bit >>= 2) {
    if (m >= r + bit) { m -= r + bit; r = (r >> 1) + bit; }
    else r >>= 1;
  }
  r = (r + 1) >> 1; /* a root is never halfway between two floats */
  if (r >> 24) { r >>= 1; e++; }
  v.u = (uint32_t)(e + 127) << 23 | ((uint32_t)r & 0x7fffffu);
  return v.f;
#endif
}

/* The nearest whole number, ties to the even one, of |x| < 2^22. */
CAPS_INLINE int32_t caps_round(float x) {
  volatile float shifted = x + 12582912.0f;
  float bits = shifted;
  int32_t n;
  memcpy(&n, &bits, 4);
  return n - 0x4B400000;
}

/* Quantized: NaN becomes the smallest number. */
CAPS_INLINE uint8_t caps_to_uint8(float x, int32_t zero) {
  int32_t n;
  x = x > 1000.0f ? 1000.0f : x >= -1000.0f ? x : -1000.0f;
  n = caps_round(x) + zero;
  return (uint8_t)(n < 0 ? 0 : n > 255 ? 255 : n);
}

CAPS_INLINE int8_t caps_to_int8(float x, int32_t zero) {
  int32_t n;
  x = x > 1000.0f ? 1000.0f : x >= -1000.0f ? x : -1000.0f;
  n = caps_round(x) + zero;
  return (int8_t)(n < -128 ? -128 : n > 127 ? 127 : n);
}
