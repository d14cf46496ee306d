/* uses: exp */
CAPS_FUNCTION float caps_tanh(float x) {
  float size = x < 0.0f ? -x : x, y;
  if (size < 0.04f) return x - x * x * x * 0.333333333f;
  y = 1.0f - 2.0f / (caps_exp(2.0f * size) + 1.0f);
  return x < 0.0f ? -y : y;
}
