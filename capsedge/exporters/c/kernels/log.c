/* ln x with an error below 2 ulp (Cephes); of zero -inf, of negative numbers NaN. */
CAPS_FUNCTION float caps_log(float x) {
  union { float f; uint32_t u; } v;
  float f, z, y;
  int32_t e = -126;
  v.f = x;
  if (!(x > 0.0f)) return x == 0.0f ? -INFINITY : NAN;
  if (v.u >= 0x7f800000u) return x;
  if (v.u < 1u << 23) { v.f = x * 8388608.0f; e -= 23; } /* subnormal */
  e += (int32_t)(v.u >> 23);
  v.u = (v.u & 0x7fffffu) | 0x3f000000u;
  f = v.f;
  if (f < 0.707106781186547524f) { e--; f = f + f - 1.0f; }
  else f -= 1.0f;
  z = f * f;
  y = 7.0376836292e-2f;
  y = y * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  y *= f * z;
  y += -2.12194440e-4f * (float)e;
  y -= 0.5f * z;
  return f + y + 0.693359375f * (float)e;
}

#if defined(CAPS_VECTORS) && !defined(__ARM_FEATURE_MVE)
/* The same of several numbers: every branch as a choice by lanes. */
#define CAPS_LOG(n)                                                                                            \
  CAPS_INLINE caps_float##n caps_log##n(const caps_float##n given) {                                           \
    const caps_float##n none = {0.0f};                                                                         \
    const caps_int##n small = given < 0x1p-126f, zero = given == 0.0f, valid = given > 0.0f;                   \
    const caps_int##n most = given >= INFINITY;                                                                \
    caps_float##n x = CAPS_CHOOSE(n, small, given * 8388608.0f, given), f, z, y;                               \
    caps_int##n e = ((caps_int##n)x >> 23) - 126 - (small & 23), low;                                          \
    f = (caps_float##n)(((caps_int##n)x & 0x7fffff) | 0x3f000000);                                             \
    low = f < 0.707106781186547524f;                                                                           \
    e += low;                                                                                                  \
    f = CAPS_CHOOSE(n, low, f + f - 1.0f, f - 1.0f);                                                           \
    z = f * f;                                                                                                 \
    y = f * 7.0376836292e-2f - 1.1514610310e-1f;                                                               \
    y = y * f + 1.1676998740e-1f;                                                                              \
    y = y * f - 1.2420140846e-1f;                                                                              \
    y = y * f + 1.4249322787e-1f;                                                                              \
    y = y * f - 1.6668057665e-1f;                                                                              \
    y = y * f + 2.0000714765e-1f;                                                                              \
    y = y * f - 2.4999993993e-1f;                                                                              \
    y = y * f + 3.3333331174e-1f;                                                                              \
    y *= f * z;                                                                                                \
    y += -2.12194440e-4f * __builtin_convertvector(e, caps_float##n);                                          \
    y -= 0.5f * z;                                                                                             \
    y = f + y + 0.693359375f * __builtin_convertvector(e, caps_float##n);                                      \
    y = CAPS_CHOOSE(n, most, given, y);                                                                        \
    return CAPS_CHOOSE(n, valid, y, CAPS_CHOOSE(n, zero, none - INFINITY, none + NAN));                        \
  }
CAPS_LOG(4)
#if defined(CAPS_VECTORS8)
CAPS_LOG(8)
#endif
#if defined(CAPS_VECTORS16)
CAPS_LOG(16)
#endif
#endif

CAPS_INLINE void caps_log_all(const float *x, float *y, const int n) {
  int k = 0;
#if defined(CAPS_VECTORS16)
  for (; k + 16 <= n; k += 16) caps_store16(y + k, caps_log16(caps_load16(x + k)));
#elif defined(CAPS_VECTORS8)
  for (; k + 8 <= n; k += 8) caps_store8(y + k, caps_log8(caps_load8(x + k)));
#endif
#if defined(CAPS_LOG)
  for (; k + 4 <= n; k += 4) caps_store4(y + k, caps_log4(caps_load4(x + k)));
#endif
  for (; k < n; k++) y[k] = caps_log(x[k]);
}
