/* uses: conv_f32 */
/* A convolution over [height][width][channels] in tiles of 2x2 outputs, by minimal filtering. A window is cut into pieces of
   up to 5x5 taps, for which 2 outputs along an axis take one product for each of as many points as taps, 0, 1, -1, 2, -1/2
   in this order, and one for infinity. */
typedef struct {
  int height, width, channels, outputs, stride_h, stride_w, top, left, out_h, out_w, relu, passes;
} caps_fast_conv;

/* Pieces that have the same points; each begins at a row and a column of the window. */
typedef struct {
  int rows, columns, pieces;
} caps_fast_pass;

#define CAPS_POINTS 6

typedef float caps_float1;
CAPS_INLINE float caps_load1(const float *p) { return *p; }
CAPS_INLINE void caps_store1(float *p, float v) { *p = v; }

/* caps_line: n channels of a line of inputs, transformed; to may be where they are. caps_pair: n products of a line, for the
   two outputs of a tile. */
#define CAPS_FAST(n)                                                                                           \
  CAPS_INLINE void caps_line##n(int points, const float *const *from, int k, float *to, int step) {            \
    caps_float##n d0 = caps_load##n(from[0] + k), d1 = caps_load##n(from[1] + k), d2 = caps_load##n(from[2] + k); \
    caps_float##n d3 = d0, d4 = d0, a = d0, b = d0, c = d0, e = d0;                                            \
    to += k;                                                                                                   \
    if (points > 3) d3 = caps_load##n(from[3] + k);                                                            \
    if (points > 4) d4 = caps_load##n(from[4] + k);                                                            \
    if (points == 3) {                                                                                          \
      caps_store##n(to, d1 - d0);                                                                              \
      caps_store##n(to + step, d1);                                                                            \
      caps_store##n(to + 2 * step, d2 - d1);                                                                   \
      return;                                                                                                  \
    }                                                                                                          \
    if (points == 4) {                                                                                         \
      a = d0; b = d1; c = d2; e = d3;                                                                          \
    } else if (points == 5) {                                                                                  \
      a = d1 - 2.0f * d0; b = d2 - 2.0f * d1; c = d3 - 2.0f * d2; e = d4 - 2.0f * d3;                          \
      caps_store##n(to + 3 * step, d3 - d1);                                                                   \
    } else {                                                                                                   \
      const caps_float##n f = d3 - d1, g = d4 - d2;                                                            \
      a = (d2 - d0) - 1.5f * d1; b = f - 1.5f * d2; c = g - 1.5f * d3;                                         \
      e = (caps_load##n(from[5] + k) - d3) - 1.5f * d4;                                                        \
      caps_store##n(to + 3 * step, g + 0.5f * f);                                                              \
      caps_store##n(to + 4 * step, g - 2.0f * f);                                                              \
    }                                                                                                          \
    caps_store##n(to, c - a);                                                                                  \
    caps_store##n(to + step, b + c);                                                                           \
    caps_store##n(to + 2 * step, c - b);                                                                       \
    caps_store##n(to + (points - 1) * step, e - b);                                                            \
  }                                                                                                            \
  CAPS_INLINE void caps_pair##n(int points, const float *m, int size, caps_float##n *y0, caps_float##n *y1) {  \
    const caps_float##n m1 = caps_load##n(m + size), m2 = caps_load##n(m + 2 * size);                          \
    *y0 = caps_load##n(m) + m1;                                                                                \
    if (points == 3) { *y1 = m1 + m2; return; }                                                                \
    *y0 = *y0 + m2;                                                                                            \
    *y1 = m1 - m2;                                                                                             \
    if (points > 4) {                                                                                          \
      const caps_float##n m3 = caps_load##n(m + 3 * size);                                                     \
      *y0 = *y0 + m3;                                                                                          \
      *y1 = *y1 + 2.0f * m3;                                                                                   \
    }                                                                                                          \
    if (points > 5) {                                                                                          \
      const caps_float##n m4 = caps_load##n(m + 4 * size);                                                     \
      *y0 = *y0 + m4;                                                                                          \
      *y1 = *y1 - 0.5f * m4;                                                                                   \
    }                                                                                                          \
    *y1 = *y1 + caps_load##n(m + (points - 1) * size);                                                         \
  }                                                                                                            \
  /* The products of row i, added to the 2x2 outputs y. */                                                     \
  CAPS_INLINE void caps_row##n(int i, int rows, int columns, const float *m, float *y, int k, int size) {      \
    static const float point[CAPS_POINTS - 1] = {0.0f, 1.0f, -1.0f, 2.0f, -0.5f};                              \
    caps_float##n r0, r1;                                                                                      \
    caps_pair##n(columns, m + k, size, &r0, &r1);                                                              \
    y += k;                                                                                                    \
    if (!i) {                                                                                                  \
      caps_store##n(y, r0);                                                                                    \
      caps_store##n(y + size, r1);                                                                             \
      return;                                                                                                  \
    }                                                                                                          \
    if (i == rows - 1) {                                                                                       \
      caps_store##n(y + 2 * size, caps_load##n(y + 2 * size) + r0);                                            \
      caps_store##n(y + 3 * size, caps_load##n(y + 3 * size) + r1);                                            \
      return;                                                                                                  \
    }                                                                                                          \
    caps_store##n(y, caps_load##n(y) + r0);                                                                    \
    caps_store##n(y + size, caps_load##n(y + size) + r1);                                                      \
    if (i == 1) {                                                                                              \
      caps_store##n(y + 2 * size, r0);                                                                         \
      caps_store##n(y + 3 * size, r1);                                                                         \
      return;                                                                                                  \
    }                                                                                                          \
    caps_store##n(y + 2 * size, caps_load##n(y + 2 * size) + point[i] * r0);                                   \
    caps_store##n(y + 3 * size, caps_load##n(y + 3 * size) + point[i] * r1);                                   \
  }
CAPS_FAST(1)
#define CAPS_FAST_LOOP(w, k, n, body) for (; k + w <= n; k += w) { body(w) }
#if defined(CAPS_VECTORS)
CAPS_FAST(4)
#endif
#if defined(CAPS_VECTORS8)
CAPS_FAST(8)
#endif
#if defined(CAPS_VECTORS16)
CAPS_FAST(16)
#define CAPS_FAST_EACH(k, n, body)                                                                             \
  CAPS_FAST_LOOP(16, k, n, body) CAPS_FAST_LOOP(8, k, n, body) CAPS_FAST_LOOP(4, k, n, body) CAPS_FAST_LOOP(1, k, n, body)
#elif defined(CAPS_VECTORS8)
#define CAPS_FAST_EACH(k, n, body)                                                                             \
  CAPS_FAST_LOOP(8, k, n, body) CAPS_FAST_LOOP(4, k, n, body) CAPS_FAST_LOOP(1, k, n, body)
#elif defined(CAPS_VECTORS)
#define CAPS_FAST_EACH(k, n, body) CAPS_FAST_LOOP(4, k, n, body) CAPS_FAST_LOOP(1, k, n, body)
#else
#define CAPS_FAST_EACH(k, n, body) CAPS_FAST_LOOP(1, k, n, body)
#endif

/* A line of all channels; compilers get the number of points, which decides what is computed. */
CAPS_FUNCTION void caps_fast_line(int points, const float *const *from, int channels, float *to, int step) {
  int k = 0;
#define CAPS_BODY3(w) caps_line##w(3, from, k, to, step);
#define CAPS_BODY4(w) caps_line##w(4, from, k, to, step);
#define CAPS_BODY5(w) caps_line##w(5, from, k, to, step);
#define CAPS_BODY6(w) caps_line##w(6, from, k, to, step);
  if (points == 3) { CAPS_FAST_EACH(k, channels, CAPS_BODY3) }
  else if (points == 4) { CAPS_FAST_EACH(k, channels, CAPS_BODY4) }
  else if (points == 5) { CAPS_FAST_EACH(k, channels, CAPS_BODY5) }
  else { CAPS_FAST_EACH(k, channels, CAPS_BODY6) }
#undef CAPS_BODY3
#undef CAPS_BODY4
#undef CAPS_BODY5
#undef CAPS_BODY6
}

/* The inputs of a piece, transformed: those of a position are step floats from those of the next. Outside of the image they
   are zeros. The piece of tile t begins at row y0 and column x0. */
CAPS_INLINE void caps_fast_input(const caps_fast_conv *c, const caps_fast_pass *pass, int y0, int x0, const float *x,
                                 const float *zeros, float *to, int step) {
  const float *from[CAPS_POINTS];
  int i, j;
  for (i = 0; i < pass->rows; i++) {
    const int yy = y0 + i * c->stride_h;
    for (j = 0; j < pass->columns; j++) {
      const int xx = x0 + j * c->stride_w;
      const int inside = yy >= 0 && xx >= 0 && yy < c->height && xx < c->width;
      from[j] = inside ? x + (yy * c->width + xx) * c->channels : zeros;
    }
    caps_fast_line(pass->columns, from, c->channels, to + i * pass->columns * step, step);
  }
  for (j = 0; j < pass->columns; j++) {
    for (i = 0; i < pass->rows; i++) from[i] = to + (i * pass->columns + j) * step;
    caps_fast_line(pass->rows, from, c->channels, to + j * step, pass->columns * step);
  }
}

#if defined(CAPS_VECTORS) && !defined(__ARM_FEATURE_MVE)
/* The products of up to 4 tiles in one position, for 2 vectors of output channels: sums over n inputs, which stay in
   registers. */
#define CAPS_FAST_TILE(l)                                                                                      \
  CAPS_INLINE void caps_fast_tile##l(const float *const *q, int tiles, int n, const float *v, const float *w,  \
                                     int step, float *y) {                                                     \
    const float *const q0 = q[0], *const q1 = q[1], *const q2 = q[2], *const q3 = q[3];                        \
    caps_float##l a0, b0, a1, b1, a2, b2, a3, b3;                                                              \
    int k;                                                                                                     \
    memset(&a0, 0, sizeof a0);                                                                                 \
    b0 = a1 = b1 = a2 = b2 = a3 = b3 = a0;                                                                     \
    for (k = 0; k < n; k++, v += step, w += step) {                                                            \
      caps_float##l low = caps_load##l(v), high = caps_load##l(w);                                             \
      CAPS_KEEP(low);                                                                                          \
      CAPS_KEEP(high);                                                                                         \
      a0 += low * q0[k]; b0 += high * q0[k];                                                                   \
      a1 += low * q1[k]; b1 += high * q1[k];                                                                   \
      a2 += low * q2[k]; b2 += high * q2[k];                                                                   \
      if (tiles > 3) { a3 += low * q3[k]; b3 += high * q3[k]; }                                                \
    }                                                                                                          \
    caps_store##l(y, a0); caps_store##l(y + l, b0);                                                            \
    caps_store##l(y + 2 * l, a1); caps_store##l(y + 3 * l, b1);                                                \
    caps_store##l(y + 4 * l, a2); caps_store##l(y + 5 * l, b2);                                                \
    if (tiles > 3) { caps_store##l(y + 6 * l, a3); caps_store##l(y + 7 * l, b3); }                             \
  }
CAPS_FAST_TILE(4)
#if defined(CAPS_VECTORS8)
CAPS_FAST_TILE(8)
#endif
#if defined(CAPS_VECTORS16)
CAPS_FAST_TILE(16)
#endif
#define CAPS_FAST_WIDTH 32 /* most channels of which products are computed together */

/* far: from the weights of a block of 16 output channels to those of the next. */
CAPS_INLINE void caps_fast_products(const float *const *q, int tiles, int n, const float *w, int step, int far, int width,
                                    float *y) {
#if defined(CAPS_VECTORS16)
  if (width == 32) {
    caps_fast_tile16(q, tiles, n, w, w + far, step, y);
    return;
  }
#endif
#if defined(CAPS_VECTORS8)
  if (width == 16) {
    caps_fast_tile8(q, tiles, n, w, w + 8, step, y);
    return;
  }
#endif
  (void)width;
  (void)far;
  caps_fast_tile4(q, tiles, n, w, w + 4, step, y);
}
#else
#define CAPS_FAST_WIDTH 4
CAPS_INLINE void caps_fast_products(const float *const *q, int tiles, int n, const float *v, int step, int far, int width,
                                    float *y) {
  const float *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3];
#if defined(CAPS_VECTORS)
  caps_float4 a0, a1, a2, a3;
  memset(&a0, 0, sizeof a0);
  a1 = a2 = a3 = a0;
  for (; n > 0; n--, v += step) {
    const caps_float4 f = caps_load4(v);
    a0 += f * *q0++; a1 += f * *q1++; a2 += f * *q2++;
    if (tiles > 3) a3 += f * *q3++;
  }
  caps_store4(y, a0); caps_store4(y + 4, a1); caps_store4(y + 8, a2);
  if (tiles > 3) caps_store4(y + 12, a3);
#else
  float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f, b0 = 0.0f, b1 = 0.0f, b2 = 0.0f, b3 = 0.0f;
  float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f, d0 = 0.0f, d1 = 0.0f, d2 = 0.0f, d3 = 0.0f;
  for (; n > 0; n--, v += step) {
    const float x0 = *q0++, x1 = *q1++, x2 = *q2++, f0 = v[0], f1 = v[1], f2 = v[2], f3 = v[3];
    a0 += f0 * x0; a1 += f1 * x0; a2 += f2 * x0; a3 += f3 * x0;
    b0 += f0 * x1; b1 += f1 * x1; b2 += f2 * x1; b3 += f3 * x1;
    c0 += f0 * x2; c1 += f1 * x2; c2 += f2 * x2; c3 += f3 * x2;
    if (tiles > 3) {
      const float x3 = *q3++;
      d0 += f0 * x3; d1 += f1 * x3; d2 += f2 * x3; d3 += f3 * x3;
    }
  }
  y[0] = a0; y[1] = a1; y[2] = a2; y[3] = a3;
  y[4] = b0; y[5] = b1; y[6] = b2; y[7] = b3;
  y[8] = c0; y[9] = c1; y[10] = c2; y[11] = c3;
  if (tiles > 3) { y[12] = d0; y[13] = d1; y[14] = d2; y[15] = d3; }
#endif
  (void)far;
  (void)width;
}
#endif

/* The 2x2 outputs y of tiles in one pass, size values each, from their transformed inputs v and the weights w. */
CAPS_INLINE void caps_fast_outputs(const caps_fast_pass *pass, int tiles, int last, const float *v, int n, const float *w,
                                   int step, int far, int width, float *y) {
  const int size = tiles * width;
  float products[CAPS_POINTS * 4 * CAPS_FAST_WIDTH];
  const float *q[4];
  int i, j, k, t;
  for (i = 0; i < pass->rows; i++) {
    for (j = 0; j < pass->columns; j++, v += tiles * n, w += n * step) {
      for (t = 0; t < 4; t++) q[t] = v + (t < last ? t : last) * n;
      caps_fast_products(q, tiles, n, w, step, far, width, products + j * size);
    }
#define CAPS_BODY(w) caps_row##w(i, pass->rows, pass->columns, products, y, k, size);
    k = 0;
    CAPS_FAST_EACH(k, size, CAPS_BODY)
#undef CAPS_BODY
  }
}

/* Weights of each pass [outputs/16][positions][pieces][channels][16], the last ones in 8 columns if at most 8 outputs are
   left; bias padded as they are. starts: the row and column of every piece. scratch: a row of zeros, and the inputs of up to
   4 tiles. Sums start with the bias. */
CAPS_FUNCTION void caps_fast_conv_f32(const caps_fast_conv *c, const caps_fast_pass *passes, const int *starts,
                                      const float *x, const float *w, const float *bias, float *y, float *scratch) {
  const int across = (c->out_w + 1) / 2, tiles = (c->out_h + 1) / 2 * across, padded = (c->outputs + 7) / 8 * 8;
  float *const v = scratch + c->channels, sums[4 * 4 * CAPS_FAST_WIDTH];
  int tile, count;
  memset(scratch, 0, sizeof(float) * (size_t)c->channels);
  for (tile = 0; tile < tiles; tile += count) {
    const int left = tiles - tile, *start = starts;
    const float *weights = w;
    int p, block, width;
    count = left % 4 ? 3 : 4; /* with few places that stay empty */
    for (p = 0; p < c->passes; p++) {
      const caps_fast_pass *const pass = &passes[p];
      const int n = pass->pieces * c->channels, positions = pass->rows * pass->columns;
      const int have = left < count ? left : count;
      int piece, t;
      for (piece = 0; piece < pass->pieces; piece++, start += 2)
        for (t = 0; t < have; t++)
          caps_fast_input(c, pass, (tile + t) / across * 2 * c->stride_h - c->top + start[0],
                          (tile + t) % across * 2 * c->stride_w - c->left + start[1], x, scratch,
                          v + t * n + piece * c->channels, count * n);
      for (block = 0; block < c->outputs; block += width) {
        const int first = block / CAPS_BLOCK * CAPS_BLOCK, some = c->outputs - block;
        const int step = c->outputs - first > 8 ? CAPS_BLOCK : 8;
        const float *const of = weights + first * positions * n + (block - first);
        int a, k;
        width = CAPS_WIDTH(some, step);
        if (count == 4)
          caps_fast_outputs(pass, 4, have - 1, v, n, of, step, CAPS_BLOCK * positions * n, width, sums);
        else
          caps_fast_outputs(pass, 3, have - 1, v, n, of, step, CAPS_BLOCK * positions * n, width, sums);
        for (t = 0; t < have; t++) for (a = 0; a < 4; a++) {
          const int row = (tile + t) / across * 2 + a / 2, column = (tile + t) % across * 2 + a % 2;
          const float *const s = sums + (a * count + t) * width;
          float *const to = y + (row * c->out_w + column) * c->outputs + block;
          if (row >= c->out_h || column >= c->out_w) continue;
          for (k = 0; k < width && k < some; k++) to[k] = (p ? to[k] : bias[block + k]) + s[k];
          if (c->relu && p == c->passes - 1)
            for (k = 0; k < width && k < some; k++) to[k] = to[k] < 0.0f ? 0.0f : to[k];
        }
      }
      weights += padded * positions * n;
    }
  }
}
