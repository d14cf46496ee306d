/* variants: f32 q8 */
/* uses: votes softmax exp log windows lanes */
typedef struct {
  caps_windows windows;
  int iterations, centres, normalize;
  float first, epsilon, variance_epsilon, activation_epsilon, cost_epsilon;
} caps_em_SUFFIX_t;

/* The votes of child i of a window, with the coordinates of its cell. */
CAPS_INLINE void caps_em_votes_SUFFIX(const caps_windows *c, int centres, const float *coordinates, const float *pose,
                                      const WEIGHT *w, const float *scale, float *votes, int child, int i) {
  const int size = c->rows * c->l, cell = child / c->types;
  const float *offset = coordinates ? coordinates + cell * size : 0;
#if defined(CAPS_VECTORS)
  float centre[16];
  if (!coordinates && centres && size == 16) {
    int h;
    for (h = 0; h < 16; h++) centre[h] = -0.0f;
    centre[c->l - 1] = ((float)(cell / c->width) + 0.5f) / (float)c->height;
    centre[2 * c->l - 1] = ((float)(cell % c->width) + 0.5f) / (float)c->width;
    offset = centre;
  }
#endif
  caps_votes_SUFFIX(pose + child * c->rows * c->k, w + (c->shared ? i % c->types : i) * c->parents * c->k * c->l, scale,
                    offset, votes, c->parents, c->rows, c->k, c->l);
  if (!offset && centres) {
    const float y = ((float)(cell / c->width) + 0.5f) / (float)c->height;
    const float x = ((float)(cell % c->width) + 0.5f) / (float)c->width;
    int j;
    for (j = 0; j < c->parents * size; j += size) {
      votes[j + c->l - 1] += y;
      votes[j + 2 * c->l - 1] += x;
    }
  }
}

/* EM routing. Votes are computed again in the two passes of an M-step, for means and for variances; responsibilities of a
   window are stored. Scratch: votes, means, precisions, logarithms P*M each, mass, prior M each, responsibilities I*M. */
CAPS_INLINE void caps_em_SUFFIX(const caps_em_SUFFIX_t *e, const float *pose, const float *a, const WEIGHT *w,
                                const float *scale, const float *beta_u, const float *beta_a, const float *temperatures,
                                const float *coordinates, float *pose_out, float *a_out, float *scratch) {
  const caps_windows *const c = &e->windows;
  const int parents = c->parents, size = c->rows * c->l, all = parents * size;
  const int children = (c->shared ? c->height * c->width : c->kernel_h * c->kernel_w) * c->types;
  float *const votes = scratch, *const mean = votes + all, *const variance = mean + all, *const logs = variance + all;
  float *const mass = logs + all, *const prior = mass + parents, *const r = prior + parents;
  int oy, ox, t, i, j, h;
  for (oy = 0; oy < c->out_h; oy++) for (ox = 0; ox < c->out_w; ox++, pose_out += all, a_out += parents) {
    for (t = 0; t < e->iterations; t++) {
      /* E-step and the sums of the means */
#if defined(CAPS_VECTORS16)
      caps_float16 masses = {0.0f};
#endif
      memset(mass, 0, sizeof(float) * (size_t)parents);
      memset(pose_out, 0, sizeof(float) * (size_t)all);
      for (i = 0; i < children; i++) {
        const int child = caps_child(c, oy, ox, i);
        float *const ri = r + i * parents, share = a[child];
        if (e->normalize) share = share / (share + e->epsilon);
        caps_em_votes_SUFFIX(c, e->centres, coordinates, pose, w, scale, votes, child, i);
#if defined(CAPS_VECTORS16)
        if (size == 16 && parents <= 16) { /* the same with all parents in one register */
          caps_float16 shares = {0.0f};
          float one[16];
          shares += e->first;
          if (t) shares = caps_softmax16(caps_part(prior, parents) - caps_distance_all(votes, mean, variance, parents), parents, 0);
          shares *= share;
          caps_put(ri, shares, parents);
          caps_store16(one, shares);
          masses += shares;
          for (j = 0; j < parents; j++) caps_add_scaled(pose_out + j * 16, votes + j * 16, one[j], 16);
          continue;
        }
#endif
        if (t) {
          for (j = 0; j < parents; j++)
            ri[j] = prior[j] - caps_distance(votes + j * size, mean + j * size, variance + j * size, size);
          caps_softmax(ri, parents, 1, 0);
        } else for (j = 0; j < parents; j++) ri[j] = e->first;
        for (j = 0; j < parents; j++) {
          const float f = ri[j] *= share;
          mass[j] += f;
          caps_add_scaled(pose_out + j * size, votes + j * size, f, size);
        }
      }
#if defined(CAPS_VECTORS16)
      if (size == 16 && parents <= 16) caps_put(mass, masses, parents);
#endif
      for (j = 0; j < parents; j++) for (h = j * size; h < (j + 1) * size; h++) mean[h] = pose_out[h] /= mass[j] + e->epsilon;
      /* variances */
      memset(variance, 0, sizeof(float) * (size_t)all);
      for (i = 0; i < children; i++) {
        const float *const ri = r + i * parents;
        caps_em_votes_SUFFIX(c, e->centres, coordinates, pose, w, scale, votes, caps_child(c, oy, ox, i), i);
        for (j = 0; j < parents; j++) caps_add_squares(variance + j * size, votes + j * size, mean + j * size, ri[j], size);
      }
      for (j = 0; j < parents; j++) for (h = j * size; h < (j + 1) * size; h++)
        variance[h] = variance[h] / (mass[j] + e->epsilon) + e->variance_epsilon;
      caps_log_all(variance, logs, all);
      for (j = 0; j < parents; j++) {
        float cost = 0.0f, z;
        for (h = j * size; h < (j + 1) * size; h++) cost += logs[h];
        z = temperatures[t] * (beta_a[j] - ((float)size * beta_u[j] + 0.5f * cost) * (mass[j] + e->cost_epsilon));
        prior[j] = (z < 0.0f ? z : 0.0f) - caps_log(1.0f + caps_exp(z < 0.0f ? z : -z)); /* ln sigmoid(z) */
        a_out[j] = caps_exp(z < 0.0f ? z : 0.0f) / (1.0f + caps_exp(z < 0.0f ? z : -z));
        if (e->activation_epsilon > 0.0f) prior[j] = caps_log(a_out[j] + e->activation_epsilon);
      }
      /* What parents have in common cancels in the softmax; left in, it takes digits from the distances. */
      for (h = 0; h < size; h++) {
        float common = 0.0f;
        for (j = 0; j < parents; j++) common += logs[j * size + h];
        common *= 1.0f / (float)parents;
        for (j = 0; j < parents; j++) prior[j] -= 0.5f * (logs[j * size + h] - common);
      }
      for (h = 0; h < all; h++) variance[h] = 0.5f / variance[h];
    }
  }
}
