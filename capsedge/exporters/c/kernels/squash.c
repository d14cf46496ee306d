/* Poses get the length n^2 / (1 + n^2) / sqrt(n^2 + epsilon) of their norms n. */
CAPS_INLINE void caps_squash(const float *x, float *y, int rows, int n, float epsilon) {
  int k;
  for (; rows > 0; rows--, x += n, y += n) {
    float square = 0.0f, share;
    for (k = 0; k < n; k++) square += x[k] * x[k];
    share = square / (square + 1.0f) / caps_sqrt(square + epsilon);
    for (k = 0; k < n; k++) y[k] = x[k] * share;
  }
}
