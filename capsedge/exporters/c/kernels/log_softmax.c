/* uses: exp log */
/* In place; from the logits themselves, because the logarithm of a small share is lost in it. */
CAPS_FUNCTION void caps_log_softmax(float *x, int n, int stride) {
  float top = x[0], sum = 0.0f;
  int j;
  for (j = 0; j < n; j++) if (x[j * stride] > top) top = x[j * stride];
  for (j = 0; j < n; j++) sum += caps_exp(x[j * stride] - top);
  sum = caps_log(sum);
  for (j = 0; j < n; j++) x[j * stride] = x[j * stride] - top - sum;
}
