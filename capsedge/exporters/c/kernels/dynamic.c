/* variants: f32 q8 */
/* uses: softmax squash */
/* Routing by agreement. Votes are computed again in every pass, child by child; logits are the agreement with the sum of
   all parents so far (total). Weights [I][J*P/4][D][4], J*P padded to a multiple of 4; scratch: votes, sums and total, so
   padded, and couplings J. */
CAPS_INLINE void caps_dynamic_SUFFIX(const float *u, const WEIGHT *w, const float *scale, const float *prior,
                                     const float *bias, float *v, float *scratch, const int children, const int parents,
                                     const int size, const int depth, const int iterations, const int leaky, const int shared,
                                     const float agreement, const float epsilon) {
  const int all = parents * size, padded = (all + 3) / 4 * 4;
  float *const votes = scratch, *const sums = votes + padded, *const total = sums + padded;
  float *const couplings = total + padded;
  int t, i, j, k, d;
  memset(total, 0, sizeof(float) * (size_t)all);
  for (t = 0; t < iterations; t++) {
    const WEIGHT *f = w;
    const float *x = u;
    const int uniform = !t && !prior && !leaky; /* all couplings are 1/J: children add up without votes of their own */
    float *const out = uniform ? sums : votes;
    memset(sums, 0, sizeof(float) * (size_t)padded);
    for (i = 0; i < children; i++, x += depth) {
      if (shared) f = w; /* one weight for all children */
      for (k = 0; k < padded; k += 4) {
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
        if (uniform) { a0 = out[k]; a1 = out[k + 1]; a2 = out[k + 2]; a3 = out[k + 3]; }
        CAPS_UNROLL
        for (d = 0; d < depth; d++, f += 4) {
          a0 += x[d] * (float)f[0]; a1 += x[d] * (float)f[1]; a2 += x[d] * (float)f[2]; a3 += x[d] * (float)f[3];
        }
        out[k] = a0; out[k + 1] = a1; out[k + 2] = a2; out[k + 3] = a3;
      }
      if (uniform) continue;
      for (j = 0; j < parents; j++) {
        float sum = 0.0f;
        if (t) {
          CAPS_UNROLL
          for (k = 0; k < size; k++) sum += votes[j * size + k] * total[j * size + k];
        }
        couplings[j] = prior ? sum + prior[i * parents + j] : sum;
      }
      caps_softmax(couplings, parents, 1, leaky);
      for (j = 0; j < parents; j++) {
        const float share = couplings[j];
        CAPS_UNROLL
        for (k = 0; k < size; k++) sums[j * size + k] += share * votes[j * size + k];
      }
    }
    for (k = 0; k < all; k++) {
      if (uniform) sums[k] *= 1.0f / (float)parents;
      sums[k] = (scale ? sums[k] * scale[k] : sums[k]) + bias[k];
    }
    caps_squash(sums, v, parents, size, epsilon);
    for (k = 0; k < all; k++) total[k] += agreement * (scale ? v[k] * scale[k] : v[k]);
  }
}
