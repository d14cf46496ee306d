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
