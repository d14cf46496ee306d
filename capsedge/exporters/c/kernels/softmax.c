/* uses: exp */
/* In place; leaky: with one more logit of zero, whose share is dropped. */
CAPS_INLINE void caps_softmax(float *x, int n, int stride, int leaky) {
  float top = leaky ? 0.0f : x[0], sum;
  int j;
  for (j = 0; j < n; j++) if (x[j * stride] > top) top = x[j * stride];
  sum = leaky ? caps_exp(-top) : 0.0f;
  for (j = 0; j < n; j++) sum += x[j * stride] = caps_exp(x[j * stride] - top);
  sum = 1.0f / sum;
  for (j = 0; j < n; j++) x[j * stride] *= sum;
}
