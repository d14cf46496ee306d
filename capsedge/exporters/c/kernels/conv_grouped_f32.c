/* uses: conv_f32 */
/* Groups of channels, each with outputs of its own; weights [outputs][kernel_h][kernel_w][channels/groups]. */
CAPS_FUNCTION void caps_conv_grouped_f32(const caps_conv *c, int groups, const float *x, const float *w,
                                         const float *bias, float *y) {
  const int inside = c->channels / groups, each = c->outputs / groups;
  int o, m, ky, kx, k;
  for (o = 0; o < c->out_h * c->out_w; o++) for (m = 0; m < c->outputs; m++) {
    const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
    const float *v = w + m * c->kernel_h * c->kernel_w * inside;
    float sum = bias[m];
    for (ky = 0; ky < c->kernel_h; ky++) for (kx = 0; kx < c->kernel_w; kx++, v += inside) {
      const int yy = y0 + ky * c->dilation_h, xx = x0 + kx * c->dilation_w;
      if (yy >= 0 && xx >= 0 && yy < c->height && xx < c->width) {
        const float *q = x + (yy * c->width + xx) * c->channels + m / each * inside;
        for (k = 0; k < inside; k++) sum += v[k] * q[k];
      }
    }
    y[o * c->outputs + m] = c->relu && sum < 0.0f ? 0.0f : sum;
  }
}
