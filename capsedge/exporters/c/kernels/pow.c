/* uses: exp log */
CAPS_FUNCTION float caps_pow(float x, float y) {
  float power, half;
  if (y == 0.0f || x == 1.0f) return 1.0f;
  if (y == 0.5f) return caps_sqrt(x);
  if (y == (float)(int32_t)y && y > -17.0f && y < 17.0f) { /* few factors: products are nearer than exp(log) */
    int32_t n = (int32_t)y, k = n < 0 ? -n : n;
    for (power = 1.0f, half = x; k; k >>= 1, half *= half) if (k & 1) power *= half;
    return n < 0 ? 1.0f / power : power;
  }
  return x == 0.0f ? (y > 0.0f ? 0.0f : INFINITY) : caps_exp(y * caps_log(x));
}
