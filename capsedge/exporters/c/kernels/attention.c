/* variants: f32 q8 */
/* uses: votes softmax normalize windows lanes */
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
      caps_votes_SUFFIX(pose + caps_child(c, oy, ox, i) * c->rows * c->k, w + i * parents * c->k * c->l, scale, 0,
                        votes, parents, c->rows, c->k, c->l);
      if (!parent) {
        caps_add(sums, votes, all);
        continue;
      }
#if defined(CAPS_VECTORS16)
      if (size == 16 && parents <= 16) {
        float one[16];
        caps_store16(one, caps_softmax16(caps_inner_all(votes, parent, parents) * agreement, parents, 0));
        for (j = 0; j < parents; j++) caps_add_scaled(sums + j * 16, votes + j * 16, one[j], 16);
        continue;
      }
#endif
      for (j = 0; j < parents; j++) couplings[j] = caps_inner(votes + j * size, parent + j * size, size) * agreement;
      caps_softmax(couplings, parents, 1, 0);
      for (j = 0; j < parents; j++) caps_add_scaled(sums + j * size, votes + j * size, couplings[j], size);
    }
    if (!parent) for (h = 0; h < all; h++) sums[h] *= 1.0f / (float)parents;
    else parent += all;
    for (j = 0; j < parents; j++) caps_normalize(sums + j * size, out + j * size, size, gain, bias, epsilon);
  }
}
