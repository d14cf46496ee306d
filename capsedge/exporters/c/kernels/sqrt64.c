/* The square root of a double, correctly rounded, digit by digit. */
CAPS_FUNCTION double caps_sqrt64(double x) {
  union { double f; uint64_t u; } v;
  uint64_t m, root = 0, rest = 0;
  int k, e;
  v.f = x;
  if (!(x > 0.0) || v.u >> 52 >= 0x7ff) return x;
  e = (int)(v.u >> 52) - 1023;
  if (e == -1023) return 0.0; /* subnormal: far below any deviation of pixels */
  m = (v.u & 0xfffffffffffffull) | 0x10000000000000ull;
  if (e & 1) { m <<= 1; e--; }
  m <<= 10; /* 64 bits, two at a time from the top */
  for (k = 0; k < 54; k++) {
    rest = rest << 2 | m >> 62;
    m <<= 2;
    root <<= 1;
    if (rest >= 2 * root + 1) { rest -= 2 * root + 1; root++; }
  }
  root = (root + 1) >> 1;
  if (root >> 53) { root >>= 1; e += 2; }
  v.u = (uint64_t)(e / 2 + 1023) << 52 | (root & 0xfffffffffffffull);
  return v.f;
}

/* (x - mean) / max(deviation, 1 / sqrt(n)) of an image, added up channel by channel; a channel's values are step apart. */
CAPS_FUNCTION void caps_standardize(float *x, int channels, int plane, int size, int step) {
  const double n = (double)channels * (double)size;
  double mean = 0.0, square = 0.0, least = 1.0 / caps_sqrt64(n), d;
  int i, k;
  for (k = 0; k < channels; k++) for (i = 0; i < size; i++) mean += (double)x[k * plane + i * step];
  mean /= n;
  for (k = 0; k < channels; k++) for (i = 0; i < size; i++) {
    d = (double)x[k * plane + i * step] - mean;
    square += d * d;
  }
  d = caps_sqrt64(square / n);
  d = d > least ? d : least;
  for (i = 0; i < channels * size; i++) x[i] = (float)(((double)x[i] - mean) / d);
}
