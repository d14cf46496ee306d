/* A convolution over [height][width][channels]. */
typedef struct {
  int height, width, channels, outputs, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
  int out_h, out_w, relu;
} caps_conv;

#define CAPS_PIXELS 4
#define CAPS_BLOCK 8 /* output channels computed together */

/* Window of output position o: where its rows lie and how far apart; copied to the patch where it leaves the image. */
CAPS_INLINE const float *caps_window(const caps_conv *c, const float *x, int o, float *patch, int *stride) {
  const int y0 = o / c->out_w * c->stride_h - c->top, x0 = o % c->out_w * c->stride_w - c->left;
  const int row = c->kernel_w * c->channels;
  int ky, kx;
  float *p = patch;
  if (y0 >= 0 && x0 >= 0 && c->dilation_w == 1 && y0 + (c->kernel_h - 1) * c->dilation_h < c->height &&
      x0 + c->kernel_w <= c->width) {
    *stride = c->dilation_h * c->width * c->channels;
    return x + (y0 * c->width + x0) * c->channels;
  }
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

/* Weights [outputs/8][kernel_h][kernel_w][channels][8]; patch: 4 windows. Sums start with the bias. */
CAPS_FUNCTION void caps_conv_f32(const caps_conv *c, const float *x, const float *w, const float *bias, float *y,
                                 float *patch) {
  const int row = c->kernel_w * c->channels, positions = c->out_h * c->out_w;
  int o, i, m, ky, k, block;
  for (o = 0; o < positions; o += CAPS_PIXELS) {
    const float *q[CAPS_PIXELS], *wp = w;
    int stride[CAPS_PIXELS], at[CAPS_PIXELS];
    for (i = 0; i < CAPS_PIXELS; i++) {
      at[i] = o + i < positions ? o + i : positions - 1;
      q[i] = caps_window(c, x, at[i], patch + i * c->kernel_h * row, &stride[i]);
    }
    for (block = 0; block < c->outputs; block += CAPS_BLOCK, wp += CAPS_BLOCK * c->kernel_h * row) {
      const float *b = bias + block;
      float sums[CAPS_PIXELS][CAPS_BLOCK];
#if defined(CAPS_VECTORS) && !defined(__ARM_FEATURE_MVE)
      const float *v = wp;
      caps_float4 a0 = caps_load4(b), b0 = caps_load4(b + 4), a1 = a0, b1 = b0, a2 = a0, b2 = b0, a3 = a0, b3 = b0;
      for (ky = 0; ky < c->kernel_h; ky++) {
        const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];
        const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];
        for (k = 0; k < row; k++, v += CAPS_BLOCK) {
          const caps_float4 low = caps_load4(v), high = caps_load4(v + 4);
          a0 += low * q0[k]; b0 += high * q0[k];
          a1 += low * q1[k]; b1 += high * q1[k];
          a2 += low * q2[k]; b2 += high * q2[k];
          a3 += low * q3[k]; b3 += high * q3[k];
        }
      }
      memcpy(sums[0], &a0, 16); memcpy(sums[0] + 4, &b0, 16);
      memcpy(sums[1], &a1, 16); memcpy(sums[1] + 4, &b1, 16);
      memcpy(sums[2], &a2, 16); memcpy(sums[2] + 4, &b2, 16);
      memcpy(sums[3], &a3, 16); memcpy(sums[3] + 4, &b3, 16);
#else
      int half;
      for (half = 0; half < CAPS_BLOCK; half += 4) {
        const float *v = wp + half;
#if defined(CAPS_VECTORS) /* Helium has 8 registers: 4 pixels by 4 channels */
        caps_float4 a0 = caps_load4(b + half), a1 = a0, a2 = a0, a3 = a0;
        for (ky = 0; ky < c->kernel_h; ky++) {
          const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];
          const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];
          for (k = 0; k < row; k++, v += CAPS_BLOCK) {
            const caps_float4 f = caps_load4(v);
            a0 += f * *q0++; a1 += f * *q1++; a2 += f * *q2++; a3 += f * *q3++;
          }
        }
        memcpy(sums[0] + half, &a0, 16); memcpy(sums[1] + half, &a1, 16);
        memcpy(sums[2] + half, &a2, 16); memcpy(sums[3] + half, &a3, 16);
#else
        float a0 = b[half], a1 = b[half + 1], a2 = b[half + 2], a3 = b[half + 3];
        float b0 = a0, b1 = a1, b2 = a2, b3 = a3, c0 = a0, c1 = a1, c2 = a2, c3 = a3, d0 = a0, d1 = a1, d2 = a2, d3 = a3;
        for (ky = 0; ky < c->kernel_h; ky++) {
          const float *q0 = q[0] + ky * stride[0], *q1 = q[1] + ky * stride[1];
          const float *q2 = q[2] + ky * stride[2], *q3 = q[3] + ky * stride[3];
          for (k = row; k > 0; k--, v += CAPS_BLOCK) {
            const float x0 = *q0++, x1 = *q1++, x2 = *q2++, x3 = *q3++, f0 = v[0], f1 = v[1], f2 = v[2], f3 = v[3];
            a0 += f0 * x0; a1 += f1 * x0; a2 += f2 * x0; a3 += f3 * x0;
            b0 += f0 * x1; b1 += f1 * x1; b2 += f2 * x1; b3 += f3 * x1;
            c0 += f0 * x2; c1 += f1 * x2; c2 += f2 * x2; c3 += f3 * x2;
            d0 += f0 * x3; d1 += f1 * x3; d2 += f2 * x3; d3 += f3 * x3;
          }
        }
        sums[0][half] = a0; sums[0][half + 1] = a1; sums[0][half + 2] = a2; sums[0][half + 3] = a3;
        sums[1][half] = b0; sums[1][half + 1] = b1; sums[1][half + 2] = b2; sums[1][half + 3] = b3;
        sums[2][half] = c0; sums[2][half + 1] = c1; sums[2][half + 2] = c2; sums[2][half + 3] = c3;
        sums[3][half] = d0; sums[3][half + 1] = d1; sums[3][half + 2] = d2; sums[3][half + 3] = d3;
#endif
      }
#endif
      for (i = 0; i < CAPS_PIXELS; i++) for (m = 0; m < CAPS_BLOCK && block + m < c->outputs; m++) {
        const float s = sums[i][m];
        y[at[i] * c->outputs + block + m] = c->relu && s < 0.0f ? 0.0f : s;
      }
    }
  }
}
