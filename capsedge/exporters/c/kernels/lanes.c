/* Loops over the elements of capsules. Where they add up, element k goes to the sum k mod 4, and the four are joined in
   one order, so that vectors of four give the same bits. */
CAPS_INLINE float caps_join(float s0, float s1, float s2, float s3) { return (s0 + s1) + (s2 + s3); }

#if defined(CAPS_VECTORS)
CAPS_INLINE float caps_join4(caps_float4 s) { return caps_join(s[0], s[1], s[2], s[3]); }
#endif
#if defined(CAPS_VECTORS16)
/* The quarters of a vector, added from the first on. */
CAPS_INLINE caps_float4 caps_fold(caps_float16 v) {
  const __m512 w = (__m512)v;
  const __m128 s = _mm_add_ps(_mm512_castps512_ps128(w), _mm512_extractf32x4_ps(w, 1));
  return (caps_float4)_mm_add_ps(_mm_add_ps(s, _mm512_extractf32x4_ps(w, 2)), _mm512_extractf32x4_ps(w, 3));
}
#endif

#if defined(CAPS_VECTORS16)
/* The sums of term(j) for n <= 16 capsules j of 16 elements, in the lanes of a register: stored one by one, they would have
   to reach memory before they can be read together. */
#define CAPS_COLLECT(n, term)                                                                                  \
  __m512 all = _mm512_setzero_ps();                                                                            \
  all = _mm512_castps128_ps512(CAPS_COLLECT4(n, 0, term));                                                     \
  all = _mm512_insertf32x4(all, CAPS_COLLECT4(n, 4, term), 1);                                                 \
  all = _mm512_insertf32x4(all, CAPS_COLLECT4(n, 8, term), 2);                                                 \
  all = _mm512_insertf32x4(all, CAPS_COLLECT4(n, 12, term), 3);                                                \
  return (caps_float16)all;
#define CAPS_COLLECT1(n, j, term) ((j) < n ? (__m128)caps_fold(term(j)) : _mm_setzero_ps())
#define CAPS_COLLECT4(n, j, term)                                                                              \
  (j >= n ? _mm_setzero_ps() :                                                                                 \
   _mm_hadd_ps(_mm_hadd_ps(CAPS_COLLECT1(n, j, term), CAPS_COLLECT1(n, j + 1, term)),                          \
               _mm_hadd_ps(CAPS_COLLECT1(n, j + 2, term), CAPS_COLLECT1(n, j + 3, term))))

CAPS_INLINE caps_float16 caps_inner_all(const float *a, const float *b, const int n) {
#define CAPS_TERM(j) caps_load16(a + 16 * (j)) * caps_load16(b + 16 * (j))
  CAPS_COLLECT(n, CAPS_TERM)
#undef CAPS_TERM
}

CAPS_INLINE caps_float16 caps_square16(caps_float16 d) { return d * d; }

CAPS_INLINE caps_float16 caps_distance_all(const float *a, const float *b, const float *f, const int n) {
#define CAPS_TERM(j) caps_square16(caps_load16(a + 16 * (j)) - caps_load16(b + 16 * (j))) * caps_load16(f + 16 * (j))
  CAPS_COLLECT(n, CAPS_TERM)
#undef CAPS_TERM
}

CAPS_INLINE caps_float16 caps_part(const float *x, const int n) {
  return (caps_float16)_mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (16 - n)), x);
}
CAPS_INLINE void caps_put(float *x, const caps_float16 v, const int n) {
  _mm512_mask_storeu_ps(x, (__mmask16)(0xffffu >> (16 - n)), (__m512)v);
}
#endif

/* The sums of product(k) in the order above. */
#define CAPS_ORDERED(n, product, vector)                                                                       \
  float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;                                                            \
  int k = 0;                                                                                                   \
  if (n >= 4) {                                                                                                \
    CAPS_FOURS(n, product, vector)                                                                             \
  }                                                                                                            \
  if (k < n) s0 += product(k);                                                                                 \
  if (k + 1 < n) s1 += product(k + 1);                                                                         \
  if (k + 2 < n) s2 += product(k + 2);                                                                         \
  return caps_join(s0, s1, s2, s3);
#if defined(CAPS_VECTORS)
#define CAPS_FOURS(n, product, vector)                                                                         \
    caps_float4 s;                                                                                             \
    CAPS_SIXTEEN(n, vector)                                                                                    \
    s = vector(4, 0);                                                                                          \
    CAPS_UNROLL                                                                                                \
    for (k = 4; k + 4 <= n; k += 4) s += vector(4, k);                                                         \
    s0 = s[0]; s1 = s[1]; s2 = s[2]; s3 = s[3];
#else
#define CAPS_FOURS(n, product, vector)                                                                         \
    s0 = product(0); s1 = product(1); s2 = product(2); s3 = product(3);                                        \
    CAPS_UNROLL                                                                                                \
    for (k = 4; k + 4 <= n; k += 4) {                                                                          \
      s0 += product(k); s1 += product(k + 1); s2 += product(k + 2); s3 += product(k + 3);                      \
    }
#endif
#if defined(CAPS_VECTORS16)
#define CAPS_SIXTEEN(n, vector) if (n == 16) return caps_join4(caps_fold(vector(16, 0)));
#else
#define CAPS_SIXTEEN(n, vector)
#endif

/* The sum of a[k] * b[k]. */
CAPS_INLINE float caps_inner(const float *a, const float *b, const int n) {
#define CAPS_PRODUCT(k) a[k] * b[k]
#define CAPS_PRODUCTS(w, k) caps_load##w(a + k) * caps_load##w(b + k)
  CAPS_ORDERED(n, CAPS_PRODUCT, CAPS_PRODUCTS)
#undef CAPS_PRODUCT
#undef CAPS_PRODUCTS
}

CAPS_INLINE float caps_square(float d) { return d * d; }

/* The sum of (a[k] - b[k])^2 * f[k]. */
CAPS_INLINE float caps_distance(const float *a, const float *b, const float *f, const int n) {
#define CAPS_PRODUCT(k) caps_square(a[k] - b[k]) * f[k]
#define CAPS_PRODUCTS(w, k)                                                                                    \
  (caps_load##w(a + k) - caps_load##w(b + k)) * (caps_load##w(a + k) - caps_load##w(b + k)) * caps_load##w(f + k)
  CAPS_ORDERED(n, CAPS_PRODUCT, CAPS_PRODUCTS)
#undef CAPS_PRODUCT
#undef CAPS_PRODUCTS
}

/* A loop over vectors as wide as the target has, then over single elements. */
#if defined(CAPS_VECTORS16)
#define CAPS_EACH(k, n, body) CAPS_LOOP(16, k, n, body) CAPS_LOOP(8, k, n, body) CAPS_LOOP(4, k, n, body)
#elif defined(CAPS_VECTORS8)
#define CAPS_EACH(k, n, body) CAPS_LOOP(8, k, n, body) CAPS_LOOP(4, k, n, body)
#elif defined(CAPS_VECTORS)
#define CAPS_EACH(k, n, body) CAPS_LOOP(4, k, n, body)
#else
#define CAPS_EACH(k, n, body)
#endif
#define CAPS_LOOP(w, k, n, body) CAPS_UNROLL for (; k + w <= n; k += w) { body(w, k) }

/* y[k] += f * x[k] */
CAPS_INLINE void caps_add_scaled(float *y, const float *x, const float f, const int n) {
  int k = 0;
#define CAPS_BODY(w, k) caps_store##w(y + k, caps_load##w(y + k) + f * caps_load##w(x + k));
  CAPS_EACH(k, n, CAPS_BODY)
#undef CAPS_BODY
  CAPS_UNROLL
  for (; k < n; k++) y[k] += f * x[k];
}

/* y[k] += x[k] */
CAPS_INLINE void caps_add(float *y, const float *x, const int n) {
  int k = 0;
#define CAPS_BODY(w, k) caps_store##w(y + k, caps_load##w(y + k) + caps_load##w(x + k));
  CAPS_EACH(k, n, CAPS_BODY)
#undef CAPS_BODY
  CAPS_UNROLL
  for (; k < n; k++) y[k] += x[k];
}

/* y[k] += f * (x[k] - m[k])^2 */
CAPS_INLINE void caps_add_squares(float *y, const float *x, const float *m, const float f, const int n) {
  int k = 0;
#define CAPS_BODY(w, k)                                                                                        \
  const caps_float##w d = caps_load##w(x + k) - caps_load##w(m + k);                                           \
  caps_store##w(y + k, caps_load##w(y + k) + f * d * d);
  CAPS_EACH(k, n, CAPS_BODY)
#undef CAPS_BODY
  CAPS_UNROLL
  for (; k < n; k++) {
    const float d = x[k] - m[k];
    y[k] += f * d * d;
  }
}
