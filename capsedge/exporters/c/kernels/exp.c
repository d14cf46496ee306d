/* e^x with an error below 2 ulp: the nearest power of two, and a polynomial of degree 6 (Cephes) for the rest. */
CAPS_FUNCTION float caps_exp(float x) {
  union { float f; uint32_t u; } power;
  float y, whole;
  int32_t n;
  if (x != x) return x;
  if (x > 88.72283f) return INFINITY;
  if (x < -103.97208f) return 0.0f;
  whole = x * 1.44269504088896341f;
  n = (int32_t)(whole + (whole < 0.0f ? -0.5f : 0.5f));
  whole = (float)n;
  x -= whole * 0.693359375f; /* ln 2 in two parts, the first exact in every product */
  x -= whole * -2.12194440e-4f;
  y = 1.9875691500e-4f;
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * x * x + x + 1.0f;
  if (n > 127) { y *= 2.0f; n--; }
  if (n < -126) { power.u = 1u << 23; y *= power.f; n += 126; } /* a subnormal result in two steps */
  power.u = (uint32_t)(n + 127) << 23;
  return y * power.f;
}

#if defined(CAPS_VECTORS) && !defined(__ARM_FEATURE_MVE)
/* The same of several numbers: every branch as a choice by lanes. */
#define CAPS_EXP(n)                                                                                            \
  CAPS_INLINE caps_float##n caps_exp##n(const caps_float##n given) {                                           \
    const caps_float##n zero = {0.0f}, one = zero + 1.0f, half = zero + 0.5f;                                  \
    const caps_int##n high = given > 88.72283f, low = given < -103.97208f, other = given != given;             \
    caps_float##n x = CAPS_CHOOSE(n, high | low | other, zero, given), y, whole = x * 1.44269504088896341f;    \
    caps_int##n e = __builtin_convertvector(whole + CAPS_CHOOSE(n, whole < 0.0f, -half, half), caps_int##n);   \
    caps_int##n above, below;                                                                                  \
    whole = __builtin_convertvector(e, caps_float##n);                                                         \
    x -= whole * 0.693359375f;                                                                                 \
    x -= whole * -2.12194440e-4f;                                                                              \
    y = x * 1.9875691500e-4f + 1.3981999507e-3f;                                                               \
    y = y * x + 8.3334519073e-3f;                                                                              \
    y = y * x + 4.1665795894e-2f;                                                                              \
    y = y * x + 1.6666665459e-1f;                                                                              \
    y = y * x + 5.0000001201e-1f;                                                                              \
    y = y * x * x + x + 1.0f;                                                                                  \
    above = e > 127;                                                                                           \
    below = e < -126;                                                                                          \
    y *= CAPS_CHOOSE(n, above, one + one, CAPS_CHOOSE(n, below, zero + 0x1p-126f, one));                       \
    e += (above & -1) + (below & 126);                                                                         \
    y *= (caps_float##n)((e + 127) << 23);                                                                     \
    y = CAPS_CHOOSE(n, high, zero + INFINITY, CAPS_CHOOSE(n, low, zero, y));                                   \
    return CAPS_CHOOSE(n, other, given, y);                                                                    \
  }
CAPS_EXP(4)
#if defined(CAPS_VECTORS8)
CAPS_EXP(8)
#endif
#if defined(CAPS_VECTORS16)
CAPS_EXP(16)
#endif
/* e^(x - top) in place; the last vector overlaps the one before. */
#define CAPS_EXP_ALL(w)                                                                                        \
  if (n >= w) {                                                                                                \
    const caps_float##w last = caps_exp##w(caps_load##w(x + n - w) - top);                                     \
    for (; k + w < n; k += w) caps_store##w(x + k, caps_exp##w(caps_load##w(x + k) - top));                    \
    caps_store##w(x + n - w, last);                                                                            \
    return;                                                                                                    \
  }
#endif

CAPS_INLINE void caps_exp_all(float *x, const int n, const float top) {
  int k = 0;
#if defined(CAPS_VECTORS16)
  CAPS_EXP_ALL(16)
#endif
#if defined(CAPS_VECTORS8)
  CAPS_EXP_ALL(8)
#endif
#if defined(CAPS_EXP_ALL)
  CAPS_EXP_ALL(4)
#endif
  for (; k < n; k++) x[k] = caps_exp(x[k] - top);
}
