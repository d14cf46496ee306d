/* y[M][N] = a[M][K] . b[K][N], of elements that lie at any strides. */
CAPS_FUNCTION void caps_matmul(const float *a, int a_row, int a_step, const float *b, int b_step, int b_column, float *y,
                               int y_row, int y_column, int m, int k, int n) {
  int i, j, t;
  for (i = 0; i < m; i++) for (j = 0; j < n; j++) {
    float sum = 0.0f;
    for (t = 0; t < k; t++) sum += a[i * a_row + t * a_step] * b[t * b_step + j * b_column];
    y[i * y_row + j * y_column] = sum;
  }
}
