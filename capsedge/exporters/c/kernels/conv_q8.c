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
  v = v > 1000.0f ? 1000.0f : v < -1000.0f ? -1000.0f : v;
  __asm__("vcvtn.s32.f32 %0, %1" : "=t"(v) : "t"(v));
  memcpy(&n, &v, 4);
  n += zero;
  return (uint8_t)(n < 0 ? 0 : n > 255 ? 255 : n);
#else
  return caps_to_uint8((float)sum * factor, zero);
#endif
}

#if defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_FEATURE_MVE) && !defined(CAPS_PORTABLE)
#define CAPS_DSP 1
typedef int16_t caps_pixel; /* fours of two pixels in turn, each in the order 0, 2, 1, 3 in which SXTB16 unpacks weights */
#else
typedef uint8_t caps_pixel;
#endif

/* n bytes from x, or of value where x is NULL, to p. */
CAPS_INLINE uint8_t *caps_fill(uint8_t *p, const uint8_t *x, int value, int n) {
  if (x) memcpy(p, x, (size_t)n);
  else memset(p, value, (size_t)n);
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
#elif defined(__AVX2__) && !defined(CAPS_PORTABLE)
  __m256i a0 = _mm256_setzero_si256(), a1 = a0, a2 = a0, a3 = a0;
  __m128i low, high;
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) {
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i y = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)q));
    const __m256i f = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
    const __m256i g = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 16)));
    a0 = _mm256_add_epi32(a0, _mm256_madd_epi16(x, f));
    a1 = _mm256_add_epi32(a1, _mm256_madd_epi16(x, g));
    a2 = _mm256_add_epi32(a2, _mm256_madd_epi16(y, f));
    a3 = _mm256_add_epi32(a3, _mm256_madd_epi16(y, g));
  }
  a0 = _mm256_hadd_epi32(_mm256_hadd_epi32(a0, a1), _mm256_hadd_epi32(a2, a3));
  low = _mm256_castsi256_si128(a0);
  high = _mm256_extracti128_si256(a0, 1);
  _mm_storeu_si128((__m128i *)s, _mm_add_epi32(_mm_add_epi32(low, high), _mm_loadu_si128((const __m128i *)s)));
#elif defined(__SSE2__) && !defined(CAPS_PORTABLE)
  __m128i a0 = _mm_setzero_si128(), a1 = a0, a2 = a0, a3 = a0, b0, b1;
  const __m128i none = a0;
  for (; n > 0; n -= 16, w += 32, p += 16, q += 16) {
    const __m128i x = _mm_loadu_si128((const __m128i *)p), y = _mm_loadu_si128((const __m128i *)q);
    const __m128i x0 = _mm_unpacklo_epi8(x, none), x1 = _mm_unpackhi_epi8(x, none);
    const __m128i y0 = _mm_unpacklo_epi8(y, none), y1 = _mm_unpackhi_epi8(y, none);
    const __m128i f = _mm_loadu_si128((const __m128i *)w), g = _mm_loadu_si128((const __m128i *)(w + 16));
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
  _mm_storeu_si128((__m128i *)s, _mm_add_epi32(a0, _mm_loadu_si128((const __m128i *)s)));
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

/* Weights [outputs/2][chunks][chunk/16][2][16]; the bias holds -x_zero times the sum of the weights. Scratch: a chunk of
   2 pixels in 16 bits, its bytes where channels are no multiple of 4, the sums of 2 pixels if there are several chunks. */
CAPS_FUNCTION void caps_conv_q8(const caps_conv_q8_t *c, const uint8_t *x, const int8_t *w, const int32_t *bias,
                                const float *factor, uint8_t *y, void *scratch) {
#if defined(CAPS_DSP)
  caps_pixel *const p = (caps_pixel *)scratch, *const q = p + 4;
#else
  caps_pixel *const p = (caps_pixel *)scratch, *const q = p + c->chunk;
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
      for (m = 0; m < c->outputs; m += 2, v += per_pair) {
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
