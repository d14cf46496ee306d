/* Layer normalization of one row. */
CAPS_INLINE void caps_normalize(const float *x, float *y, int n, const float *scale, const float *bias, float epsilon) {
  float mean = 0.0f, variance = 0.0f, d;
  int k;
  for (k = 0; k < n; k++) mean += x[k];
  mean /= (float)n;
  for (k = 0; k < n; k++) { d = x[k] - mean; variance += d * d; }
  d = 1.0f / caps_sqrt(variance / (float)n + epsilon);
  for (k = 0; k < n; k++) y[k] = (x[k] - mean) * d * scale[k] + bias[k];
}

CAPS_FUNCTION void caps_normalize_rows(const float *x, float *y, int rows, int n, const float *scale, const float *bias,
                                       float epsilon) {
  for (; rows > 0; rows--, x += n, y += n) caps_normalize(x, y, n, scale, bias, epsilon);
}
