/* variants: f32 q8 */
/* uses: votes softmax normalize windows */
/* One pass of routing by inverted dot-product attention; without parents all couplings are equal.
   Scratch: votes, sums P*M each, couplings M. */
CAPS_INLINE void caps_attention_SUFFIX(const caps_windows *c, const float *pose, const float *parent, const WEIGHT *w,
                                       const float *scale, const float *gain, const float *bias, float *out, float *scratch,
                                       float agreement, float epsilon) {
  const int parents = c->parents, size = c->rows * c->l, all = parents * size;
  const int children = c->kernel_h * c->kernel_w * c->types;
  float *const votes = scratch, *const sums = votes + all, *const couplings = sums + all;
  int oy, ox, i, j, h;
  for (oy = 0; oy < c->out_h; oy++) for (ox = 0; ox < c->out_w; ox++, out += all) {
    memset(sums, 0, sizeof(float) * (size_t)all);
    for (i = 0; i < children; i++) {
      caps_votes_SUFFIX(pose + caps_child(c, oy, ox, i) * c->rows * c->k, w + i * parents * c->k * c->l, scale, votes,
                        parents, c->rows, c->k, c->l);
      if (!parent) {
        for (h = 0; h < all; h++) sums[h] += votes[h];
        continue;
      }
      for (j = 0; j < parents; j++) {
        float sum = 0.0f;
        CAPS_UNROLL
        for (h = j * size; h < (j + 1) * size; h++) sum += votes[h] * parent[h];
        couplings[j] = sum * agreement;
      }
      caps_softmax(couplings, parents, 1, 0);
      for (j = 0; j < parents; j++) {
        const float share = couplings[j];
        CAPS_UNROLL
        for (h = j * size; h < (j + 1) * size; h++) sums[h] += share * votes[h];
      }
    }
    if (!parent) for (h = 0; h < all; h++) sums[h] *= 1.0f / (float)parents;
    else parent += all;
    for (j = 0; j < parents; j++) caps_normalize(sums + j * size, out + j * size, size, gain, bias, epsilon);
  }
}
