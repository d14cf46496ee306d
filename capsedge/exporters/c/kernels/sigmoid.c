/* uses: exp */
CAPS_FUNCTION float caps_sigmoid(float x) {
  float power = caps_exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? power : 1.0f) / (1.0f + power);
}
