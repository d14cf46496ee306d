#if defined(CAPS_VECTORS)
/* Weights as floats, in a vector. */
CAPS_INLINE caps_float4 caps_wide4_f32(const float *w) { return caps_load4(w); }
CAPS_INLINE caps_float4 caps_wide4_q8(const int8_t *w) {
#if defined(__ARM_FEATURE_MVE)
  return (caps_float4)vcvtq_f32_s32(vldrbq_s32(w));
#elif defined(__AVX2__)
  int32_t four;
  memcpy(&four, w, 4);
  return (caps_float4)_mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
#elif defined(__SSE2__)
  int32_t four;
  __m128i v;
  memcpy(&four, w, 4);
  v = _mm_cvtsi32_si128(four);
  v = _mm_unpacklo_epi8(v, v);
  return (caps_float4)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(v, v), 24));
#else
  typedef int8_t bytes __attribute__((vector_size(4)));
  bytes four;
  memcpy(&four, w, 4);
  return __builtin_convertvector(four, caps_float4);
#endif
}
#endif
#if defined(CAPS_VECTORS8)
CAPS_INLINE caps_float8 caps_wide8_f32(const float *w) { return caps_load8(w); }
CAPS_INLINE caps_float8 caps_wide8_q8(const int8_t *w) {
  return (caps_float8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)w)));
}
#endif
#if defined(CAPS_VECTORS16)
CAPS_INLINE caps_float16 caps_wide16_f32(const float *w) { return caps_load16(w); }
CAPS_INLINE caps_float16 caps_wide16_q8(const int8_t *w) {
  return (caps_float16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)w)));
}
#endif
#if !defined(CAPS_VECTORS)
/* Four weights as floats. Cortex-M moves two integers to the FPU at once, which compilers do not use. */
CAPS_INLINE void caps_four_f32(const float *w, float *a, float *b, float *c, float *d) {
  *a = w[0]; *b = w[1]; *c = w[2]; *d = w[3];
}
CAPS_INLINE void caps_four_q8(const int8_t *w, float *a, float *b, float *c, float *d) {
#if !defined(CAPS_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && defined(__arm__) && defined(__ARM_FP) &&  \
    (__ARM_FP & 4)
  const int32_t i = w[0], j = w[1], k = w[2], l = w[3];
  register float e __asm__("s28"), f __asm__("s29"), g __asm__("s30"), h __asm__("s31");
  __asm__("vmov s28, s29, %4, %5\n\tvmov s30, s31, %6, %7\n\tvcvt.f32.s32 s28, s28\n\tvcvt.f32.s32 s29, s29\n\t"
          "vcvt.f32.s32 s30, s30\n\tvcvt.f32.s32 s31, s31"
          : "=&t"(e), "=&t"(f), "=&t"(g), "=&t"(h) : "r"(i), "r"(j), "r"(k), "r"(l));
  *a = e; *b = f; *c = g; *d = h;
#else
  *a = (float)w[0]; *b = (float)w[1]; *c = (float)w[2]; *d = (float)w[3];
#endif
}
#endif
