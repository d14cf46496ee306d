/* variants: f32 q8 */
/* Votes of one child for all parents: v[M][R][L] = pose[R][K] . w[M][K][L], times the scale [M][L] of INT8 weights. */
CAPS_FUNCTION void caps_votes_SUFFIX(const float *pose, const WEIGHT *w, const float *scale, float *v, int parents, int rows,
                                     int k, int l) {
  int j, a, b, t;
  if (rows == 4 && k == 4 && l == 4) { /* the pose stays in registers */
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
    }
    return;
  }
  for (j = 0; j < parents; j++, w += k * l, v += rows * l) for (a = 0; a < rows; a++) for (b = 0; b < l; b++) {
    float sum = 0.0f;
    for (t = 0; t < k; t++) sum += pose[a * k + t] * (scale ? (float)w[t * l + b] * scale[j * l + b] : (float)w[t * l + b]);
    v[a * l + b] = sum;
  }
}
