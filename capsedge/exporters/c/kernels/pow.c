/* uses: exp log */
CAPS_FUNCTION float caps_pow(float x, float y) {
  const float size = y < 0.0f ? -y : y, base = x < 0.0f ? -x : x;
  float power, half;
  int whole = 1, odd = 0; /* an exponent of 2^24 or more is an even number */
  if (y == 0.0f || x == 1.0f) return 1.0f;
  if (y == 0.5f && base < INFINITY) return caps_sqrt(x + 0.0f);
  if (size < 16777216.0f) {
    const int32_t n = (int32_t)size;
    whole = (float)n == size;
    odd = whole && (n & 1);
    if (whole && n < 17) { /* few factors: products are nearer than exp(log) */
      int32_t k = n;
      for (power = 1.0f, half = x; k; k >>= 1, half *= half) if (k & 1) power *= half;
      return y < 0.0f ? 1.0f / power : power;
    }
  }
  if (x != x || y != y || (x < 0.0f && !whole && base < INFINITY)) return x != x ? x : y != y ? y : (x - x) / (x - x);
  if (base == 0.0f) return odd ? (y > 0.0f ? x : 1.0f / x) : y > 0.0f ? 0.0f : INFINITY;
  power = base == 1.0f ? 1.0f : caps_exp(y * caps_log(base));
  return x < 0.0f && odd ? -power : power;
}
