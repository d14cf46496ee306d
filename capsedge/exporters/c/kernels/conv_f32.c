/* A convolution over [height][width][channels]. */
typedef struct {
  int height, width, channels, outputs, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  int out_h, out_w, relu;
} caps_conv;

#define CAPS_PIXELS 4
#define CAPS_BLOCK 16 /* output channels whose weights lie together; 8 at the end where fewer are left */

/* Window of output position o: where its rows lie and how far apart; copied to patch i where it leaves the image. */
CAPS_INLINE const float *caps_window(const caps_conv *c, const float *x, int o, float *patches, int i, int *stride) {
  const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
  const int row = c->kernel_w * c->channels;
  int ky, kx;
  float *patch, *p;
  if (y0 >= 0 && x0 >= 0 && c->dilation_w == 1 && y0 + (c->kernel_h - 1) * c->dilation_h < c->height &&
      x0 + c->kernel_w <= c->width) {
    *stride = c->dilation_h * c->width * c->channels;
    return x + (y0 * c->width + x0) * c->channels;
  }
  p = patch = patches + i * c->kernel_h * row;
  for (ky = 0; ky < c->kernel_h; ky++) for (kx = 0; kx < c->kernel_w; kx++, p += c->channels) {
    const int yy = y0 + ky * c->dilation_h, xx = x0 + kx * c->dilation_w;
    if (yy >= 0 && xx >= 0 && yy < c->height && xx < c->width)
      memcpy(p, x + (yy * c->width + xx) * c->channels, sizeof(float) * (size_t)c->channels);
    else
      memset(p, 0, sizeof(float) * (size_t)c->channels);
  }
  *stride = row;
  return patch;
}

#if defined(CAPS_VECTORS) && !defined(__ARM_FEATURE_MVE)
/* 4 positions by 2 vectors of channels: the sums stay in registers. Weights of the vectors at v and w, a step apart. */
#define CAPS_TILE(n)                                                                                           \
  CAPS_INLINE void caps_tile##n(const float *const *q, const int *stride, int rows, int row, const float *v,   \
                                const float *w, int step, const float *bias, int relu, float *const *y) {      \
    caps_float##n a0 = caps_load##n(bias), b0 = caps_load##n(bias + n), a1 = a0, b1 = b0, a2 = a0, b2 = b0;    \
    caps_float##n a3 = a0, b3 = b0;                                                                            \
    int ky, k;                                                                                                 \
    for (ky = 0; ky < rows; ky++) {                                                                            \
      const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];                                    \
      const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];                                    \
      for (k = 0; k < row; k++, v += step, w += step) {                                                        \
        caps_float##n low = caps_load##n(v), high = caps_load##n(w);                                           \
        CAPS_KEEP(low);                                                                                        \
        CAPS_KEEP(high);                                                                                       \
        a0 += low * q0[k]; b0 += high * q0[k];                                                                 \
        a1 += low * q1[k]; b1 += high * q1[k];                                                                 \
        a2 += low * q2[k]; b2 += high * q2[k];                                                                 \
        a3 += low * q3[k]; b3 += high * q3[k];                                                                 \
      }                                                                                                        \
    }                                                                                                          \
    if (relu) {                                                                                                \
      CAPS_RELU(n, a0) CAPS_RELU(n, b0) CAPS_RELU(n, a1) CAPS_RELU(n, b1)                                      \
      CAPS_RELU(n, a2) CAPS_RELU(n, b2) CAPS_RELU(n, a3) CAPS_RELU(n, b3)                                      \
    }                                                                                                          \
    caps_store##n(y[0], a0); caps_store##n(y[0] + n, b0);                                                      \
    caps_store##n(y[1], a1); caps_store##n(y[1] + n, b1);                                                      \
    caps_store##n(y[2], a2); caps_store##n(y[2] + n, b2);                                                      \
    caps_store##n(y[3], a3); caps_store##n(y[3] + n, b3);                                                      \
  }
#define CAPS_RELU(n, v) v = (caps_float##n)((caps_int##n)v & ~(caps_int##n)(v < 0.0f));
CAPS_TILE(4)
#if defined(CAPS_VECTORS8)
CAPS_TILE(8)
#endif
#if defined(CAPS_VECTORS16)
CAPS_TILE(16)
#endif

#if defined(CAPS_VECTORS16)
#define CAPS_WIDTH(left, step) ((left) >= 32 ? 32 : (step))
#elif defined(CAPS_VECTORS8)
#define CAPS_WIDTH(left, step) (step)
#else
#define CAPS_WIDTH(left, step) 8
#endif
/* The sums of 4 positions, width channels each; weights at w, a step apart. */
CAPS_INLINE void caps_tile(const caps_conv *c, const float *const *q, const int *stride, int row, const float *w, int step,
                           const float *bias, int width, float *const *y) {
#if defined(CAPS_VECTORS16)
  if (width == 32) {
    __asm__("" : "+r"(bias)); /* GCC would warn of biases behind the end, where it does not see that there are 32 */
    caps_tile16(q, stride, c->kernel_h, row, w, w + CAPS_BLOCK * c->kernel_h * row, step, bias, c->relu, y);
    return;
  }
#endif
#if defined(CAPS_VECTORS8)
  if (width == 16) {
    caps_tile8(q, stride, c->kernel_h, row, w, w + 8, step, bias, c->relu, y);
    return;
  }
#endif
  (void)width;
  caps_tile4(q, stride, c->kernel_h, row, w, w + 4, step, bias, c->relu, y);
}
#else
#define CAPS_WIDTH(left, step) 4
CAPS_INLINE void caps_tile(const caps_conv *c, const float *const *q, const int *stride, int row, const float *v, int step,
                           const float *bias, int width, float *const *y) {
  int ky, k;
#if defined(CAPS_VECTORS) /* Helium has 8 registers: 4 positions by 4 channels */
  caps_float4 a0 = caps_load4(bias), a1 = a0, a2 = a0, a3 = a0;
  for (ky = 0; ky < c->kernel_h; ky++) {
    const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];
    const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];
    for (k = 0; k < row; k++, v += step) {
      const caps_float4 f = caps_load4(v);
      a0 += f * *q0++; a1 += f * *q1++; a2 += f * *q2++; a3 += f * *q3++;
    }
  }
  caps_store4(y[0], a0); caps_store4(y[1], a1); caps_store4(y[2], a2); caps_store4(y[3], a3);
#else
  float a0 = bias[0], a1 = bias[1], a2 = bias[2], a3 = bias[3];
  float b0 = a0, b1 = a1, b2 = a2, b3 = a3, c0 = a0, c1 = a1, c2 = a2, c3 = a3, d0 = a0, d1 = a1, d2 = a2, d3 = a3;
  for (ky = 0; ky < c->kernel_h; ky++) {
    const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];
    const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];
    for (k = row; k > 0; k--, v += step) {
      const float x0 = *q0++, x1 = *q1++, x2 = *q2++, x3 = *q3++, f0 = v[0], f1 = v[1], f2 = v[2], f3 = v[3];
      a0 += f0 * x0; a1 += f1 * x0; a2 += f2 * x0; a3 += f3 * x0;
      b0 += f0 * x1; b1 += f1 * x1; b2 += f2 * x1; b3 += f3 * x1;
      c0 += f0 * x2; c1 += f1 * x2; c2 += f2 * x2; c3 += f3 * x2;
      d0 += f0 * x3; d1 += f1 * x3; d2 += f2 * x3; d3 += f3 * x3;
    }
  }
  y[0][0] = a0; y[0][1] = a1; y[0][2] = a2; y[0][3] = a3;
  y[1][0] = b0; y[1][1] = b1; y[1][2] = b2; y[1][3] = b3;
  y[2][0] = c0; y[2][1] = c1; y[2][2] = c2; y[2][3] = c3;
  y[3][0] = d0; y[3][1] = d1; y[3][2] = d2; y[3][3] = d3;
#endif
  (void)width;
  if (c->relu)
    for (ky = 0; ky < CAPS_PIXELS; ky++) for (k = 0; k < 4; k++) y[ky][k] = y[ky][k] < 0.0f ? 0.0f : y[ky][k];
}
#endif

/* Weights [outputs/16][kernel_h][kernel_w][channels][16], the last ones in 8 columns if at most 8 outputs are left; bias
   and weights padded. patches: 4 windows. Sums start with the bias. */
CAPS_FUNCTION void caps_conv_f32(const caps_conv *c, const float *x, const float *w, const float *bias, float *y,
                                 float *patches) {
  const int row = c->kernel_w * c->channels, positions = c->out_h * c->out_w;
  int o, i, block, width;
  for (o = 0; o < positions; o += CAPS_PIXELS) {
    const float *q[CAPS_PIXELS];
    int stride[CAPS_PIXELS], at[CAPS_PIXELS];
    for (i = 0; i < CAPS_PIXELS; i++) {
      at[i] = o + i < positions ? o + i : positions - 1;
      q[i] = caps_window(c, x, at[i], patches, i, &stride[i]);
    }
    for (block = 0; block < c->outputs; block += width) {
      const int first = block / CAPS_BLOCK * CAPS_BLOCK, left = c->outputs - block;
      const int step = c->outputs - first > 8 ? CAPS_BLOCK : 8;
      const float *const v = w + first * c->kernel_h * row + (block - first);
      float sums[CAPS_PIXELS][16], *to[CAPS_PIXELS];
      width = CAPS_WIDTH(left, step);
      for (i = 0; i < CAPS_PIXELS; i++) to[i] = left < width ? sums[i] : y + at[i] * c->outputs + block;
      caps_tile(c, q, stride, row, v, step, bias + block, width, to);
      if (left < width)
        for (i = 0; i < CAPS_PIXELS; i++) memcpy(y + at[i] * c->outputs + block, sums[i], sizeof(float) * (size_t)left);
    }
  }
}
