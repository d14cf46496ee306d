/* A convolution of integers over [height][width][channels]. A window is summed in chunks of rows, which need little
   scratch memory; a chunk is padded to a multiple of 16. */
typedef struct {
  int height, width, channels, outputs, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  int out_h, out_w, rows, chunk, x_zero, y_zero;
} caps_conv_q8_t;

CAPS_INLINE uint8_t caps_requantize(int32_t sum, float factor, int32_t zero) {
#if !defined(CAPS_PORTABLE) && defined(__arm__) && defined(__ARM_FEATURE_DIRECTED_ROUNDING) && (__ARM_FP & 4)
  float v = (float)sum * factor;
  int32_t n;
  v = v > 1000.0f ? 1000.0f : v >= -1000.0f ? v : -1000.0f;
  __asm__("vcvtn.s32.f32 %0, %1" : "=t"(v) : "t"(v));
  memcpy(&n, &v, 4);
  n += zero;
  return (uint8_t)(n < 0 ? 0 : n > 255 ? 255 : n);
#else
  return caps_to_uint8((float)sum * factor, zero);
#endif
}

/* How the pixels of a chunk lie in scratch: two bytes for each at most, those of 2 output positions. */
#if defined(CAPS_PORTABLE)
typedef uint8_t caps_pixel;
#elif defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_FEATURE_MVE)
#define CAPS_DSP 1
typedef int16_t caps_pixel; /* fours of two pixels in turn, each in the order 0, 2, 1, 3 in which SXTB16 unpacks weights */
#elif defined(CAPS_VECTORS16) && defined(__AVX512VNNI__)
#define CAPS_VNNI 1
#define CAPS_TOGETHER 8 /* channels */
typedef uint8_t caps_pixel; /* sixteens twice, once for each channel of a pair */
#elif defined(__AVX2__)
#define CAPS_TOGETHER 4
typedef int16_t caps_pixel;
#elif defined(__SSE2__)
typedef int16_t caps_pixel;
#else
typedef uint8_t caps_pixel;
#endif

/* n bytes from x, or of value where x is NULL, to p. */
CAPS_INLINE uint8_t *caps_fill(uint8_t *p, const uint8_t *x, int value, int n) {
  if (!x) memset(p, value, (size_t)n);
  else if (n > 16) memcpy(p, x, (size_t)n);
  else if (n >= 8) { memcpy(p, x, 8); memcpy(p + n - 8, x + n - 8, 8); } /* a call would take longer */
  else if (n >= 4) { memcpy(p, x, 4); memcpy(p + n - 4, x + n - 4, 4); }
  else {
    p[0] = x[0];
    if (n > 1) p[n - 1] = x[n - 1];
    if (n > 2) p[1] = x[1];
  }
  return p + n;
}

/* Rows first to first + rows of the window of output position o, one after another. */
CAPS_INLINE void caps_bytes(const caps_conv_q8_t *c, const uint8_t *x, int o, int first, uint8_t *p) {
  const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
  const int last = first + c->rows < c->kernel_h ? first + c->rows : c->kernel_h;
  uint8_t *const end = p + c->chunk;
  int ky, kx;
  for (ky = first; ky < last; ky++) {
    const int yy = y0 + ky * c->dilation_h;
    if (yy >= 0 && yy < c->height && x0 >= 0 && c->dilation_w == 1 && x0 + c->kernel_w <= c->width) {
      p = caps_fill(p, x + (yy * c->width + x0) * c->channels, 0, c->kernel_w * c->channels);
      continue;
    }
    for (kx = 0; kx < c->kernel_w; kx++) {
      const int xx = x0 + kx * c->dilation_w;
      const int inside = yy >= 0 && xx >= 0 && yy < c->height && xx < c->width;
      p = caps_fill(p, inside ? x + (yy * c->width + xx) * c->channels : 0, c->x_zero, c->channels);
    }
  }
  memset(p, 0, (size_t)(end - p));
}

#if defined(CAPS_DSP)
/* n bytes as 16-bit numbers of one of two pixels. */
CAPS_INLINE int16_t *caps_widen(int16_t *p, const uint8_t *x, int n) {
  for (; n > 0; n -= 4, x += 4, p += 8) {
    uint32_t four, even, odd;
    memcpy(&four, x, 4);
    __asm__("uxtb16 %0, %1" : "=r"(even) : "r"(four));
    __asm__("uxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(four));
    memcpy(p, &even, 4);
    memcpy(p + 2, &odd, 4);
  }
  return p;
}
#endif

/* The same for one of two pixels as caps_dot reads them; bytes is of use where channels are no multiple of 4. */
CAPS_INLINE void caps_chunk(const caps_conv_q8_t *c, const uint8_t *x, int o, int first, caps_pixel *p, uint8_t *bytes) {
#if defined(CAPS_DSP)
  const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
  const int last = first + c->rows < c->kernel_h ? first + c->rows : c->kernel_h;
  int16_t *const end = p + 2 * c->chunk;
  int ky, kx, k;
  if (c->channels & 3) {
    caps_bytes(c, x, o, first, bytes);
    caps_widen(p, bytes, c->chunk);
    return;
  }
  for (ky = first; ky < last; ky++) for (kx = 0; kx < c->kernel_w; kx++) {
    const int yy = y0 + ky * c->dilation_h, xx = x0 + kx * c->dilation_w;
    if (yy >= 0 && xx >= 0 && yy < c->height && xx < c->width) {
      p = caps_widen(p, x + (yy * c->width + xx) * c->channels, c->channels);
    } else {
      const int16_t zero[4] = {(int16_t)c->x_zero, (int16_t)c->x_zero, (int16_t)c->x_zero, (int16_t)c->x_zero};
      for (k = c->channels; k > 0; k -= 4, p += 8) memcpy(p, zero, sizeof zero);
    }
  }
  for (; p < end; p += 8) memset(p, 0, 8);
#elif defined(CAPS_VNNI) || (defined(__SSE2__) && !defined(CAPS_PORTABLE)) /* spread from the second half of its own memory */
  uint8_t *const to = (uint8_t *)p, *const from = to + c->chunk;
  int k;
  (void)bytes;
  caps_bytes(c, x, o, first, from);
  for (k = 0; k < c->chunk; k += 16) {
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(from + k));
#if defined(CAPS_VNNI)
    const __m128i low = v, high = v;
#else
    const __m128i low = _mm_unpacklo_epi8(v, _mm_setzero_si128()), high = _mm_unpackhi_epi8(v, _mm_setzero_si128());
#endif
    _mm_storeu_si128((__m128i *)(void *)(to + 2 * k), low);
    _mm_storeu_si128((__m128i *)(void *)(to + 2 * k + 16), high);
  }
#else
  (void)bytes;
  caps_bytes(c, x, o, first, p);
#endif
}

/* Adds the products of 2 pixels and 2 channels: s[0], s[1] of pixel p, s[2], s[3] of pixel q. */
CAPS_INLINE void caps_dot(const caps_pixel *p, const caps_pixel *q, const int8_t *w, int n, int32_t *s) {
#if defined(CAPS_DSP)
  int32_t s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
  const int8_t *const end = w + 2 * n;
  (void)q;
#define CAPS_STEP(k)                                                                                             \
  "ldrd %[p0], %[p1], [%[p]], #8\n ldrd %[q0], %[q1], [%[p]], #8\n"                                             \
  "ldr %[g], [%[w], #" #k "]\n sxtb16 %[f], %[g]\n sxtb16 %[g], %[g], ror #8\n"                                 \
  "smlad %[s0], %[p0], %[f], %[s0]\n smlad %[s2], %[q0], %[f], %[s2]\n"                                         \
  "smlad %[s0], %[p1], %[g], %[s0]\n smlad %[s2], %[q1], %[g], %[s2]\n"                                         \
  "ldr %[g], [%[w], #16+" #k "]\n sxtb16 %[f], %[g]\n sxtb16 %[g], %[g], ror #8\n"                              \
  "smlad %[s1], %[p0], %[f], %[s1]\n smlad %[s3], %[q0], %[f], %[s3]\n"                                         \
  "smlad %[s1], %[p1], %[g], %[s1]\n smlad %[s3], %[q1], %[g], %[s3]\n"
  for (; w < end; w += 32) {
    uint32_t p0, p1, q0, q1, f, g;
    __asm__ volatile(CAPS_STEP(0) CAPS_STEP(4) CAPS_STEP(8) CAPS_STEP(12)
                     : [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3), [p] "+r"(p), [p0] "=&r"(p0),
                       [p1] "=&r"(p1), [q0] "=&r"(q0), [q1] "=&r"(q1), [f] "=&r"(f), [g] "=&r"(g)
                     : [w] "r"(w)
                     : "memory");
  }
#undef CAPS_STEP
  s[0] = s0; s[1] = s1; s[2] = s2; s[3] = s3;
#elif defined(CAPS_VNNI)
  __m256i a = _mm256_setzero_si256(), b = a;
  for (; n > 0; n -= 16, w += 32, p += 32, q += 32) {
    const __m256i f = _mm256_loadu_si256((const __m256i *)(const void *)w);
    a = _mm256_dpbusd_epi32(a, _mm256_loadu_si256((const __m256i *)(const void *)p), f);
    b = _mm256_dpbusd_epi32(b, _mm256_loadu_si256((const __m256i *)(const void *)q), f);
  }
  a = _mm256_hadd_epi32(a, b);
  a = _mm256_hadd_epi32(a, a); /* first channel: both pixels, twice; second channel */
  s[0] += _mm256_extract_epi32(a, 0); s[1] += _mm256_extract_epi32(a, 4);
  s[2] += _mm256_extract_epi32(a, 1); s[3] += _mm256_extract_epi32(a, 5);
#elif defined(__SSE2__) && !defined(CAPS_PORTABLE)
  __m128i a0 = _mm_setzero_si128(), a1 = a0, a2 = a0, a3 = a0, b0, b1;
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) {
    const __m128i *const pv = (const __m128i *)(const void *)p, *const qv = (const __m128i *)(const void *)q;
    const __m128i x0 = _mm_loadu_si128(pv), x1 = _mm_loadu_si128(pv + 1);
    const __m128i y0 = _mm_loadu_si128(qv), y1 = _mm_loadu_si128(qv + 1);
    const __m128i f = _mm_loadu_si128((const __m128i *)(const void *)w);
    const __m128i g = _mm_loadu_si128((const __m128i *)(const void *)(w + 16));
    const __m128i f0 = _mm_srai_epi16(_mm_unpacklo_epi8(f, f), 8), f1 = _mm_srai_epi16(_mm_unpackhi_epi8(f, f), 8);
    const __m128i g0 = _mm_srai_epi16(_mm_unpacklo_epi8(g, g), 8), g1 = _mm_srai_epi16(_mm_unpackhi_epi8(g, g), 8);
    a0 = _mm_add_epi32(a0, _mm_add_epi32(_mm_madd_epi16(x0, f0), _mm_madd_epi16(x1, f1)));
    a1 = _mm_add_epi32(a1, _mm_add_epi32(_mm_madd_epi16(x0, g0), _mm_madd_epi16(x1, g1)));
    a2 = _mm_add_epi32(a2, _mm_add_epi32(_mm_madd_epi16(y0, f0), _mm_madd_epi16(y1, f1)));
    a3 = _mm_add_epi32(a3, _mm_add_epi32(_mm_madd_epi16(y0, g0), _mm_madd_epi16(y1, g1)));
  }
  b0 = _mm_add_epi32(_mm_unpacklo_epi32(a0, a1), _mm_unpackhi_epi32(a0, a1));
  b1 = _mm_add_epi32(_mm_unpacklo_epi32(a2, a3), _mm_unpackhi_epi32(a2, a3));
  a0 = _mm_add_epi32(_mm_unpacklo_epi64(b0, b1), _mm_unpackhi_epi64(b0, b1));
  _mm_storeu_si128((__m128i *)(void *)s, _mm_add_epi32(a0, _mm_loadu_si128((const __m128i *)(const void *)s)));
#elif defined(__wasm_simd128__) && !defined(CAPS_PORTABLE)
  v128_t a0 = wasm_i32x4_splat(0), a1 = a0, a2 = a0, a3 = a0;
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) {
    const v128_t x = wasm_v128_load(p), y = wasm_v128_load(q), f = wasm_v128_load(w), g = wasm_v128_load(w + 16);
    const v128_t x0 = wasm_u16x8_extend_low_u8x16(x), x1 = wasm_u16x8_extend_high_u8x16(x);
    const v128_t y0 = wasm_u16x8_extend_low_u8x16(y), y1 = wasm_u16x8_extend_high_u8x16(y);
    const v128_t f0 = wasm_i16x8_extend_low_i8x16(f), f1 = wasm_i16x8_extend_high_i8x16(f);
    const v128_t g0 = wasm_i16x8_extend_low_i8x16(g), g1 = wasm_i16x8_extend_high_i8x16(g);
    a0 = wasm_i32x4_add(a0, wasm_i32x4_add(wasm_i32x4_dot_i16x8(x0, f0), wasm_i32x4_dot_i16x8(x1, f1)));
    a1 = wasm_i32x4_add(a1, wasm_i32x4_add(wasm_i32x4_dot_i16x8(x0, g0), wasm_i32x4_dot_i16x8(x1, g1)));
    a2 = wasm_i32x4_add(a2, wasm_i32x4_add(wasm_i32x4_dot_i16x8(y0, f0), wasm_i32x4_dot_i16x8(y1, f1)));
    a3 = wasm_i32x4_add(a3, wasm_i32x4_add(wasm_i32x4_dot_i16x8(y0, g0), wasm_i32x4_dot_i16x8(y1, g1)));
  }
#define CAPS_SUM(v)                                                                                             \
  (wasm_i32x4_extract_lane(v, 0) + wasm_i32x4_extract_lane(v, 1) + wasm_i32x4_extract_lane(v, 2) +             \
   wasm_i32x4_extract_lane(v, 3))
  s[0] += CAPS_SUM(a0); s[1] += CAPS_SUM(a1); s[2] += CAPS_SUM(a2); s[3] += CAPS_SUM(a3);
#undef CAPS_SUM
#elif defined(__ARM_FEATURE_MVE) && !defined(CAPS_PORTABLE)
  /* Pixels as signed numbers, 128 less; what that takes from a sum is 128 times the sum of its weights. */
  int32_t s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3], w0 = 0, w1 = 0;
  const uint8x16_t sign = vdupq_n_u8(128);
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) {
    const int8x16_t f = vldrbq_s8(w), g = vldrbq_s8(w + 16);
    const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vldrbq_u8(p), sign));
    const int8x16_t y = vreinterpretq_s8_u8(veorq_u8(vldrbq_u8(q), sign));
    s0 = vmladavaq_s8(s0, x, f); s1 = vmladavaq_s8(s1, x, g);
    s2 = vmladavaq_s8(s2, y, f); s3 = vmladavaq_s8(s3, y, g);
    w0 = vaddvaq_s8(w0, f); w1 = vaddvaq_s8(w1, g);
  }
  s[0] = s0 + 128 * w0; s[1] = s1 + 128 * w1; s[2] = s2 + 128 * w0; s[3] = s3 + 128 * w1;
#else
  int k;
  int32_t s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) for (k = 0; k < 16; k++) {
    const int32_t f = w[k], g = w[16 + k], x = p[k], y = q[k];
    s0 += x * f; s1 += x * g; s2 += y * f; s3 += y * g;
  }
  s[0] = s0; s[1] = s1; s[2] = s2; s[3] = s3;
#endif
}

#if defined(CAPS_TOGETHER)
typedef int32_t caps_sums __attribute__((vector_size(4 * CAPS_TOGETHER)));

/* Adds the products of 2 pixels and as many channels as are computed together; pairs of channels lie per_pair apart. */
CAPS_INLINE void caps_dots(const caps_pixel *p, const caps_pixel *q, const int8_t *w, int per_pair, int n, caps_sums *s) {
#if defined(CAPS_VNNI)
  const int8_t *const w1 = w + per_pair, *const w2 = w1 + per_pair, *const w3 = w2 + per_pair;
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i a0 = _mm512_setzero_si512(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  __m256i c0, c1, c2, c3, d0, d1, d2, d3;
  int k = 0;
  for (; k + 64 <= 2 * n; k += 64) {
    const __m512i x = _mm512_loadu_si512(p + k), y = _mm512_loadu_si512(q + k);
    const __m512i f0 = _mm512_loadu_si512(w + k), f1 = _mm512_loadu_si512(w1 + k);
    const __m512i f2 = _mm512_loadu_si512(w2 + k), f3 = _mm512_loadu_si512(w3 + k);
    a0 = _mm512_dpbusd_epi32(a0, x, f0); a1 = _mm512_dpbusd_epi32(a1, x, f1);
    a2 = _mm512_dpbusd_epi32(a2, x, f2); a3 = _mm512_dpbusd_epi32(a3, x, f3);
    b0 = _mm512_dpbusd_epi32(b0, y, f0); b1 = _mm512_dpbusd_epi32(b1, y, f1);
    b2 = _mm512_dpbusd_epi32(b2, y, f2); b3 = _mm512_dpbusd_epi32(b3, y, f3);
  }
#define CAPS_HALVE(v) _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1))
  c0 = CAPS_HALVE(a0); c1 = CAPS_HALVE(a1); c2 = CAPS_HALVE(a2); c3 = CAPS_HALVE(a3);
  d0 = CAPS_HALVE(b0); d1 = CAPS_HALVE(b1); d2 = CAPS_HALVE(b2); d3 = CAPS_HALVE(b3);
#undef CAPS_HALVE
  if (k < 2 * n) {
#define CAPS_READ(from) _mm256_loadu_si256((const __m256i *)(const void *)((from) + k))
    const __m256i x = CAPS_READ(p), y = CAPS_READ(q);
    const __m256i f0 = CAPS_READ(w), f1 = CAPS_READ(w1), f2 = CAPS_READ(w2), f3 = CAPS_READ(w3);
    c0 = _mm256_dpbusd_epi32(c0, x, f0); c1 = _mm256_dpbusd_epi32(c1, x, f1);
    c2 = _mm256_dpbusd_epi32(c2, x, f2); c3 = _mm256_dpbusd_epi32(c3, x, f3);
    d0 = _mm256_dpbusd_epi32(d0, y, f0); d1 = _mm256_dpbusd_epi32(d1, y, f1);
    d2 = _mm256_dpbusd_epi32(d2, y, f2); d3 = _mm256_dpbusd_epi32(d3, y, f3);
#undef CAPS_READ
  }
  c0 = _mm256_hadd_epi32(_mm256_hadd_epi32(c0, c1), _mm256_hadd_epi32(c2, c3)); /* first channels, second channels */
  d0 = _mm256_hadd_epi32(_mm256_hadd_epi32(d0, d1), _mm256_hadd_epi32(d2, d3));
  s[0] += (caps_sums)_mm256_permutevar8x32_epi32(c0, order);
  s[1] += (caps_sums)_mm256_permutevar8x32_epi32(d0, order);
#else
  const int8_t *const v = w + per_pair;
  __m256i a0 = _mm256_setzero_si256(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  int k;
#define CAPS_READ(from) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)((from) + 2 * k)))
  for (k = 0; k < n; k += 16) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(p + k));
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(q + k));
    const __m256i f0 = CAPS_READ(w), f1 = CAPS_READ(w + 16), f2 = CAPS_READ(v), f3 = CAPS_READ(v + 16);
    a0 = _mm256_add_epi32(a0, _mm256_madd_epi16(x, f0)); a1 = _mm256_add_epi32(a1, _mm256_madd_epi16(x, f1));
    a2 = _mm256_add_epi32(a2, _mm256_madd_epi16(x, f2)); a3 = _mm256_add_epi32(a3, _mm256_madd_epi16(x, f3));
    b0 = _mm256_add_epi32(b0, _mm256_madd_epi16(y, f0)); b1 = _mm256_add_epi32(b1, _mm256_madd_epi16(y, f1));
    b2 = _mm256_add_epi32(b2, _mm256_madd_epi16(y, f2)); b3 = _mm256_add_epi32(b3, _mm256_madd_epi16(y, f3));
  }
#undef CAPS_READ
  a0 = _mm256_hadd_epi32(_mm256_hadd_epi32(a0, a1), _mm256_hadd_epi32(a2, a3));
  b0 = _mm256_hadd_epi32(_mm256_hadd_epi32(b0, b1), _mm256_hadd_epi32(b2, b3));
  s[0] += (caps_sums)_mm_add_epi32(_mm256_castsi256_si128(a0), _mm256_extracti128_si256(a0, 1));
  s[1] += (caps_sums)_mm_add_epi32(_mm256_castsi256_si128(b0), _mm256_extracti128_si256(b0, 1));
#endif
}

/* caps_requantize of the channels computed together. */
CAPS_INLINE void caps_requantize_all(caps_sums sum, const float *factor, int32_t zero, uint8_t *y) {
#if defined(CAPS_VNNI)
  const __m256 most = _mm256_set1_ps(1000.0f), least = _mm256_set1_ps(-1000.0f);
  const __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps((__m256i)sum), _mm256_loadu_ps(factor));
  const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(v, least), most)), _mm256_set1_epi32(zero));
  const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
#else
  const __m128 most = _mm_set1_ps(1000.0f), least = _mm_set1_ps(-1000.0f);
  const __m128 v = _mm_mul_ps(_mm_cvtepi32_ps((__m128i)sum), _mm_loadu_ps(factor));
  const __m128i n = _mm_add_epi32(_mm_cvtps_epi32(_mm_min_ps(_mm_max_ps(v, least), most)), _mm_set1_epi32(zero));
  const __m128i half = _mm_packs_epi32(n, n);
#endif
  const __m128i done = _mm_packus_epi16(half, half);
  memcpy(y, &done, CAPS_TOGETHER);
}
#endif

/* Weights [outputs/2][chunks][chunk/16][2][16]; the bias holds -x_zero times the sum of the weights. Scratch: a chunk of
   2 pixels in 16 bits, its bytes where channels are no multiple of 4, the sums of 2 pixels if there are several chunks. */
CAPS_FUNCTION void caps_conv_q8(const caps_conv_q8_t *c, const uint8_t *x, const int8_t *w, const int32_t *bias,
                                const float *factor, uint8_t *y, void *scratch) {
#if defined(CAPS_DSP)
  caps_pixel *const p = (caps_pixel *)scratch, *const q = p + 4;
#else
  caps_pixel *const p = (caps_pixel *)scratch, *const q = (caps_pixel *)((int16_t *)scratch + c->chunk);
#endif
  uint8_t *const bytes = (uint8_t *)((int16_t *)scratch + 2 * c->chunk);
  int32_t *const sums = (int32_t *)(void *)(bytes + (c->channels & 3 ? c->chunk : 0));
  const int positions = c->out_h * c->out_w, per_pair = (c->kernel_h + c->rows - 1) / c->rows * 2 * c->chunk;
  int o, m, first, done;
  for (o = 0; o < positions; o += 2) {
    const int next = o + 1 < positions ? o + 1 : o;
    uint8_t *const y0 = y + o * c->outputs, *const y1 = y + next * c->outputs;
    for (first = 0, done = 0; first < c->kernel_h; first += c->rows, done += 2 * c->chunk) {
      const int8_t *v = w + done;
      const int last = first + c->rows >= c->kernel_h;
      caps_chunk(c, x, o, first, p, bytes);
      caps_chunk(c, x, next, first, q, bytes);
      m = 0;
#if defined(CAPS_TOGETHER)
      for (; m + CAPS_TOGETHER <= c->outputs; m += CAPS_TOGETHER, v += CAPS_TOGETHER / 2 * per_pair) {
        caps_sums s[2];
        if (first) memcpy(s, sums + 2 * m, sizeof s);
        else { memcpy(s, bias + m, sizeof *s); s[1] = s[0]; }
        caps_dots(p, q, v, per_pair, c->chunk, s);
        if (!last) { memcpy(sums + 2 * m, s, sizeof s); continue; }
        caps_requantize_all(s[0], factor + m, c->y_zero, y0 + m);
        caps_requantize_all(s[1], factor + m, c->y_zero, y1 + m);
      }
#endif
      for (; m < c->outputs; m += 2, v += per_pair) {
        int32_t s[4];
        if (first) memcpy(s, sums + 2 * m, sizeof s);
        else { s[0] = s[2] = bias[m]; s[1] = s[3] = bias[m + 1]; }
        caps_dot(p, q, v, c->chunk, s);
        if (!last) { memcpy(sums + 2 * m, s, sizeof s); continue; }
        y0[m] = caps_requantize(s[0], factor[m], c->y_zero);
        y1[m] = caps_requantize(s[2], factor[m], c->y_zero);
        if (m + 1 == c->outputs) break;
        y0[m + 1] = caps_requantize(s[1], factor[m + 1], c->y_zero);
        y1[m + 1] = caps_requantize(s[3], factor[m + 1], c->y_zero);
      }
    }
  }
}
