/* variants: f32 q8 */
/* uses: wide */
/* Votes of one child for all parents: v[M][R][L] = pose[R][K] . w[M][K][L], times the scale [M][L] of INT8 weights, plus
   an offset [R][L]; -0 changes nothing. */
CAPS_FUNCTION void caps_votes_SUFFIX(const float *pose, const WEIGHT *w, const float *scale, const float *offset, float *v,
                                     int parents, int rows, int k, int l) {
  int j, a, b, t;
  if (rows == 4 && k == 4 && l == 4) { /* the pose stays in registers */
#if defined(CAPS_VECTORS16) /* four rows of a parent's votes together; a weight's row is the same for all four */
    const __m512i spread = _mm512_set_epi32(12, 12, 12, 12, 8, 8, 8, 8, 4, 4, 4, 4, 0, 0, 0, 0);
    const __m512i one = _mm512_set1_epi32(1);
    const __m512 p = _mm512_loadu_ps(pose);
    const __m512i at1 = _mm512_add_epi32(spread, one), at2 = _mm512_add_epi32(at1, one), at3 = _mm512_add_epi32(at2, one);
    const __m512 p0 = _mm512_permutexvar_ps(spread, p), p1 = _mm512_permutexvar_ps(at1, p);
    const __m512 p2 = _mm512_permutexvar_ps(at2, p), p3 = _mm512_permutexvar_ps(at3, p);
    for (j = 0; j < parents; j++, w += 16, v += 16) {
      __m512 x = (__m512)caps_wide16_SUFFIX(w), y;
      if (scale) x = _mm512_mul_ps(x, _mm512_broadcast_f32x4(_mm_loadu_ps(scale + 4 * j)));
      y = _mm512_mul_ps(p0, _mm512_shuffle_f32x4(x, x, 0x00));
      y = _mm512_add_ps(y, _mm512_mul_ps(p1, _mm512_shuffle_f32x4(x, x, 0x55)));
      y = _mm512_add_ps(y, _mm512_mul_ps(p2, _mm512_shuffle_f32x4(x, x, 0xAA)));
      y = _mm512_add_ps(y, _mm512_mul_ps(p3, _mm512_shuffle_f32x4(x, x, 0xFF)));
      if (offset) y = _mm512_add_ps(y, _mm512_loadu_ps(offset));
      _mm512_storeu_ps(v, y);
    }
#elif defined(CAPS_VECTORS8) /* two rows together */
    const __m256 p = _mm256_loadu_ps(pose), q = _mm256_loadu_ps(pose + 8);
    const __m256 p0 = _mm256_permute_ps(p, 0x00), p1 = _mm256_permute_ps(p, 0x55), p2 = _mm256_permute_ps(p, 0xAA);
    const __m256 p3 = _mm256_permute_ps(p, 0xFF), q0 = _mm256_permute_ps(q, 0x00), q1 = _mm256_permute_ps(q, 0x55);
    const __m256 q2 = _mm256_permute_ps(q, 0xAA), q3 = _mm256_permute_ps(q, 0xFF);
    for (j = 0; j < parents; j++, w += 16, v += 16) {
      __m256 x = (__m256)caps_wide8_SUFFIX(w), z = (__m256)caps_wide8_SUFFIX(w + 8), x0, x1, x2, x3, y;
      if (scale) {
        const __m256 f = _mm256_broadcast_ps((const __m128 *)(const void *)(scale + 4 * j));
        x = _mm256_mul_ps(x, f);
        z = _mm256_mul_ps(z, f);
      }
      x0 = _mm256_permute2f128_ps(x, x, 0x00); x1 = _mm256_permute2f128_ps(x, x, 0x11);
      x2 = _mm256_permute2f128_ps(z, z, 0x00); x3 = _mm256_permute2f128_ps(z, z, 0x11);
      y = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(p0, x0), _mm256_mul_ps(p1, x1)), _mm256_mul_ps(p2, x2)),
                        _mm256_mul_ps(p3, x3));
      z = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(q0, x0), _mm256_mul_ps(q1, x1)), _mm256_mul_ps(q2, x2)),
                        _mm256_mul_ps(q3, x3));
      if (offset) {
        y = _mm256_add_ps(y, _mm256_loadu_ps(offset));
        z = _mm256_add_ps(z, _mm256_loadu_ps(offset + 8));
      }
      _mm256_storeu_ps(v, y);
      _mm256_storeu_ps(v + 8, z);
    }
#elif defined(CAPS_VECTORS)
    for (j = 0; j < parents; j++, w += 16, v += 16) {
      caps_float4 x0 = caps_wide4_SUFFIX(w), x1 = caps_wide4_SUFFIX(w + 4), x2 = caps_wide4_SUFFIX(w + 8);
      caps_float4 x3 = caps_wide4_SUFFIX(w + 12);
      if (scale) {
        const caps_float4 f = caps_load4(scale + 4 * j);
        x0 *= f; x1 *= f; x2 *= f; x3 *= f;
      }
      CAPS_UNROLL
      for (a = 0; a < 16; a += 4) {
        caps_float4 y = pose[a] * x0 + pose[a + 1] * x1 + pose[a + 2] * x2 + pose[a + 3] * x3;
        if (offset) y += caps_load4(offset + a);
        caps_store4(v + a, y);
      }
    }
#else
    const float p0 = pose[0], p1 = pose[1], p2 = pose[2], p3 = pose[3], p4 = pose[4], p5 = pose[5], p6 = pose[6];
    const float p7 = pose[7], p8 = pose[8], p9 = pose[9], pa = pose[10], pb = pose[11], pc = pose[12], pd = pose[13];
    const float pe = pose[14], pf = pose[15];
    for (j = 0; j < parents; j++, w += 16, v += 16) {
      CAPS_UNROLL
      for (b = 0; b < 4; b++) {
        const float f = scale ? *scale++ : 1.0f;
        const float x0 = (float)w[b] * f, x1 = (float)w[4 + b] * f, x2 = (float)w[8 + b] * f, x3 = (float)w[12 + b] * f;
        v[b] = p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3;
        v[4 + b] = p4 * x0 + p5 * x1 + p6 * x2 + p7 * x3;
        v[8 + b] = p8 * x0 + p9 * x1 + pa * x2 + pb * x3;
        v[12 + b] = pc * x0 + pd * x1 + pe * x2 + pf * x3;
      }
      if (offset) for (b = 0; b < 16; b++) v[b] += offset[b];
    }
#endif
    return;
  }
  for (j = 0; j < parents; j++, w += k * l, v += rows * l) for (a = 0; a < rows; a++) for (b = 0; b < l; b++) {
    float sum = 0.0f;
    for (t = 0; t < k; t++) sum += pose[a * k + t] * (scale ? (float)w[t * l + b] * scale[j * l + b] : (float)w[t * l + b]);
    v[a * l + b] = offset ? sum + offset[a * l + b] : sum;
  }
}
