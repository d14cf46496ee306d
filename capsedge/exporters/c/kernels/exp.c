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
