/* Pooling over [height][width][channels]: the largest value (NaN if there is one), or the mean over the window or its part in the image. */
typedef struct {
  int height, width, channels, kernel_h, kernel_w, stride_h, stride_w, top, left, out_h, out_w, mean, pads_count;
} caps_pool_t;

CAPS_FUNCTION void caps_pool(const caps_pool_t *c, const float *x, float *y) {
  int o, k, ky, kx;
  for (o = 0; o < c->out_h * c->out_w; o++) for (k = 0; k < c->channels; k++) {
    const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
    float best = 0.0f;
    int n = 0;
    for (ky = y0 < 0 ? -y0 : 0; ky < c->kernel_h && y0 + ky < c->height; ky++)
      for (kx = x0 < 0 ? -x0 : 0; kx < c->kernel_w && x0 + kx < c->width; kx++) {
        const float v = x[((y0 + ky) * c->width + x0 + kx) * c->channels + k];
        best = c->mean ? best + v : !n || v > best || v != v ? v : best;
        n++;
      }
    if (c->pads_count) n = c->kernel_h * c->kernel_w;
    y[o * c->channels + k] = c->mean ? best / (float)n : best;
  }
}
