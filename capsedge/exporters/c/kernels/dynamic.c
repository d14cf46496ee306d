/* variants: f32 q8 */
/* uses: softmax squash lanes wide */
/* Routing by agreement. Votes are computed again in every pass, child by child; logits are the agreement with the sum of
   all parents so far (total). Weights [I][J*P/16][D][16], the rest of
   J*P in fours, padded; scratch: votes, sums and total, so
   padded, and couplings J. */
CAPS_INLINE void caps_vote_SUFFIX(const float *x, const WEIGHT *w, float *v, const int depth, const int step,
                                  const int add) {
  int d;
#if defined(CAPS_VECTORS)
  caps_float4 a = x[0] * caps_wide4_SUFFIX(w);
  if (add) a += caps_load4(v);
  CAPS_UNROLL
  for (d = 1; d < depth; d++) a += x[d] * caps_wide4_SUFFIX(w + d * step);
  caps_store4(v, a);
#else
  float a0, a1, a2, a3, w0, w1, w2, w3;
  caps_four_SUFFIX(w, &w0, &w1, &w2, &w3);
  a0 = x[0] * w0; a1 = x[0] * w1; a2 = x[0] * w2; a3 = x[0] * w3;
  if (add) { a0 += v[0]; a1 += v[1]; a2 += v[2]; a3 += v[3]; }
  CAPS_UNROLL
  for (d = 1; d < depth; d++) {
    const float f = x[d];
    caps_four_SUFFIX(w + d * step, &w0, &w1, &w2, &w3);
    a0 += f * w0; a1 += f * w1; a2 += f * w2; a3 += f * w3;
  }
  v[0] = a0; v[1] = a1; v[2] = a2; v[3] = a3;
#endif
}

CAPS_INLINE void caps_votes16_SUFFIX(const float *CAPS_RESTRICT x, const WEIGHT *w, float *CAPS_RESTRICT v,
                                     const int depth, const int add) {
#if defined(CAPS_VECTORS16)
  caps_float16 a = x[0] * caps_wide16_SUFFIX(w);
  int d;
  if (add) a += caps_load16(v);
  CAPS_UNROLL
  for (d = 1; d < depth; d++) a += x[d] * caps_wide16_SUFFIX(w + d * 16);
  caps_store16(v, a);
#elif defined(CAPS_VECTORS8)
  caps_float8 a = x[0] * caps_wide8_SUFFIX(w), b = x[0] * caps_wide8_SUFFIX(w + 8);
  int d;
  if (add) { a += caps_load8(v); b += caps_load8(v + 8); }
  CAPS_UNROLL
  for (d = 1; d < depth; d++) {
    a += x[d] * caps_wide8_SUFFIX(w + d * 16);
    b += x[d] * caps_wide8_SUFFIX(w + d * 16 + 8);
  }
  caps_store8(v, a); caps_store8(v + 8, b);
#else
  int k;
  for (k = 0; k < 16; k += 4) caps_vote_SUFFIX(x, w + k, v + k, depth, 16, add);
#endif
}

CAPS_INLINE void caps_dynamic_SUFFIX(const float *u, const WEIGHT *w, const float *scale, const float *prior,
                                     const float *bias, float *v, float *scratch, const int children, const int parents,
                                     const int size, const int depth, const int iterations, const int leaky, const int shared,
                                     const float agreement, const float epsilon) {
  const int all = parents * size, padded = (all + 3) / 4 * 4;
  float *const votes = scratch, *const sums = votes + padded, *const total = sums + padded;
  float *const couplings = total + padded;
  int t, i, j, k, h;
  memset(total, 0, sizeof(float) * (size_t)all);
  for (t = 0; t < iterations; t++) {
    const WEIGHT *f = w;
    const float *x = u;
    const int uniform = !t && !prior && !leaky; /* all couplings are 1/J: children add up without votes of their own */
    float *const out = uniform ? sums : votes;
    memset(sums, 0, sizeof(float) * (size_t)padded);
    for (i = 0; i < children; i++, x += depth) {
      if (shared) f = w; /* one weight for all children */
      for (k = 0; k < padded; k += 16) {
        if (padded - k < 16) {
          for (h = k; h < padded; h += 4, f += 4 * depth) caps_vote_SUFFIX(x, f, out + h, depth, 4, uniform);
          break;
        }
        caps_votes16_SUFFIX(x, f, out + k, depth, uniform);
        f += 16 * depth;
      }
      if (uniform) continue;
#if defined(CAPS_VECTORS16)
      if (size == 16 && parents <= 16) { /* the same with all parents in one register */
        caps_float16 logits = {0.0f};
        float one[16];
        if (t) logits += caps_inner_all(votes, total, parents);
        if (prior) logits += caps_part(prior + i * parents, parents);
        caps_store16(one, caps_softmax16(logits, parents, leaky));
        for (j = 0; j < parents; j++) caps_add_scaled(sums + j * 16, votes + j * 16, one[j], 16);
        continue;
      }
#endif
      for (j = 0; j < parents; j++) {
        const float sum = t ? caps_inner(votes + j * size, total + j * size, size) : 0.0f;
        couplings[j] = prior ? sum + prior[i * parents + j] : sum;
      }
      caps_softmax(couplings, parents, 1, leaky);
      for (j = 0; j < parents; j++) caps_add_scaled(sums + j * size, votes + j * size, couplings[j], size);
    }
    for (k = 0; k < all; k++) {
      if (uniform) sums[k] *= 1.0f / (float)parents;
      sums[k] = (scale ? sums[k] * scale[k] : sums[k]) + bias[k];
    }
    caps_squash(sums, v, parents, size, epsilon);
    for (k = 0; k < all; k++) total[k] += agreement * (scale ? v[k] * scale[k] : v[k]);
  }
}
