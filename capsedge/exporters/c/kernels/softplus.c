/* uses: exp log */
CAPS_FUNCTION float caps_softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + caps_log(1.0f + caps_exp(x < 0.0f ? x : -x));
}
