/* uses: exp */
#if defined(CAPS_VECTORS16)
/* The softmax below of the first n lanes, in a register. */
CAPS_INLINE caps_float16 caps_softmax16(const caps_float16 x, const int n, const int leaky) {
  const __m512 v = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(0xffffu >> (16 - n)), (__m512)x);
  const float most = _mm512_reduce_max_ps(v), top = leaky && most < 0.0f ? 0.0f : most;
  const __m512 e = (__m512)caps_exp16((caps_float16)v - top);
  __m128 s = _mm_add_ps(_mm512_castps512_ps128(e), _mm512_extractf32x4_ps(e, 1));
  s = _mm_add_ps(_mm_add_ps(s, _mm512_extractf32x4_ps(e, 2)), _mm512_extractf32x4_ps(e, 3));
  s = _mm_add_ps(s, _mm_movehdup_ps(s)); /* s0 + s1, s2 + s3 */
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return (caps_float16)e * (1.0f / ((leaky ? caps_exp(-top) : 0.0f) + _mm_cvtss_f32(s)));
}
#endif

/* In place; leaky: with one more logit of zero, whose share is dropped. Element j adds to the sum j mod 4. */
CAPS_INLINE void caps_softmax(float *x, int n, int stride, int leaky) {
  float top = leaky ? 0.0f : x[0], sum, s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
  int j;
  for (j = 0; j < n; j++) if (x[j * stride] > top) top = x[j * stride];
  sum = leaky ? caps_exp(-top) : 0.0f;
  if (stride == 1) caps_exp_all(x, n, top);
  else for (j = 0; j < n; j++) x[j * stride] = caps_exp(x[j * stride] - top);
  for (j = 0; j + 4 <= n; j += 4) {
    s0 += x[j * stride]; s1 += x[(j + 1) * stride]; s2 += x[(j + 2) * stride]; s3 += x[(j + 3) * stride];
  }
  if (j < n) s0 += x[j * stride];
  if (j + 1 < n) s1 += x[(j + 1) * stride];
  if (j + 2 < n) s2 += x[(j + 2) * stride];
  sum += (s0 + s1) + (s2 + s3);
  sum = 1.0f / sum;
  for (j = 0; j < n; j++) x[j * stride] *= sum;
}
