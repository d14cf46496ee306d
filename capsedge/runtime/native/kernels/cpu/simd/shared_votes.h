// Routing over votes that all parents share. Their elements are those of the child, so agreements and weighted sums of
// some children are small matrix products with the parents, and the lanes hold children (agreements, softmax) or
// elements of the pose (sums), however few the parents are.
#pragma once

#include "level.h"
#include "math.h"
#include "votes.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// The children of a pass; `padded` is their number rounded up to kSlack.
struct SharedVotes {
  int count, padded, elements, parents, lanes;
  int64_t row;          // floats from one child to the next in rows
  const float* rows;    // [count][row]
  const float* across;  // [elements][padded]
  float* logits;        // [parents][padded], later the couplings
  float* products;      // [parents][row]
};

// The children's poses: where they are, if their size is that of a row, else as copies, which are kept if there is room.
// Those with a mask of 0 become zeros, since they may be NaN.
CAPSEDGE_INLINE SharedVotes shared_votes(const RoutingPass& pass, const float* mask) {
  const Votes& shape = pass.votes;
  const int count = pass.last - pass.first, padded = (count + kSlack - 1) / kSlack * kSlack;
  const int64_t row = shape.tile_stride / 2;
  float* logits = pass.scratch;
  float* products = logits + static_cast<int64_t>(shape.parents) * padded;
  float* across = pass.kept ? pass.kept + pass.first * shape.tile_stride : products + shape.parents * row;
  float* copies = across + padded * row;
  const float* pose = pass.pose + static_cast<int64_t>(pass.first) * shape.pose_size;
  const bool in_place = !mask && shape.pose_size == row;
  const float* rows = in_place ? pose : copies;
  if (!pass.have_kept) {
    if (!in_place) {
      __builtin_memset(copies, 0, sizeof(float) * static_cast<size_t>(padded * row));
      for (int c = 0; c < count; ++c)
        if (!mask || mask[c] != 0)
          __builtin_memcpy(copies + c * row, pose + static_cast<int64_t>(c) * shape.pose_size,
                           sizeof(float) * shape.pose_elements);
    }
    __builtin_memset(across, 0, sizeof(float) * static_cast<size_t>(padded * row));
    transpose(rows, row, count, shape.pose_elements, across, padded);
  }
  return {count, padded, shape.pose_elements, shape.parents, shape.lanes, row, rows, across, logits, products};
}

// total[k][s] = Σ_t factors[t · step + k · parent] rows[t][s], for M parents and S vectors of a row.
template <int M, int S>
CAPSEDGE_INLINE void shared_product(V (&total)[M][S], int count, const float* rows, int64_t row, const float* factors,
                                    int64_t step, int64_t parent) {
  for (int t = 0; t < count; ++t) {
    V own[S];
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) own[s] = load(rows + t * row + s * W);
#pragma GCC unroll 4
    for (int k = 0; k < M; ++k) {
      const V factor = splat(factors[t * step + k * parent]);
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) total[k][s] = madd(own[s], factor, total[k][s]);
    }
  }
}

// logits[m][c] += scale · Σ_h query[h][m] across[h][c] for M parents and S vectors of children.
template <int M, int S>
CAPSEDGE_INLINE void shared_agreement(const SharedVotes& u, const float* query, float scale, int m, int c) {
  V agreed[M][S] = {};
  shared_product(agreed, u.elements, u.across + c, u.padded, query + m, u.lanes, 1);
#pragma GCC unroll 4
  for (int k = 0; k < M; ++k)
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      float* at = u.logits + (m + k) * u.padded + c + s * W;
      store(at, madd(agreed[k][s], splat(scale), load(at)));
    }
}

template <int M>
CAPSEDGE_INLINE void shared_agreements(const SharedVotes& u, const float* query, float scale, int m) {
  int c = 0;
  for (; c + W < u.count; c += 2 * W) shared_agreement<M, 2>(u, query, scale, m, c);
  if (c < u.count) shared_agreement<M, 1>(u, query, scale, m, c);
}

// products[m][h] = Σ_c couplings[m][c] rows[c][h] for M parents and S vectors of elements.
template <int M, int S>
CAPSEDGE_INLINE void shared_sum(const SharedVotes& u, int m, int h) {
  V total[M][S] = {};
  shared_product(total, u.count, u.rows + h, u.row, u.logits + m * u.padded, 1, u.padded);
#pragma GCC unroll 4
  for (int k = 0; k < M; ++k)
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) store(u.products + (m + k) * u.row + h + s * W, total[k][s]);
}

template <int M>
CAPSEDGE_INLINE void shared_sums(const SharedVotes& u, int m) {
  int h = 0;
  for (; h + W < u.elements; h += 2 * W) shared_sum<M, 2>(u, m, h);
  if (h < u.elements) shared_sum<M, 1>(u, m, h);
}

// The logits of all parents: the priors, plus the agreements with the query if there is one.
CAPSEDGE_INLINE void shared_logits(const RoutingPass& pass, const SharedVotes& u) {
  __builtin_memset(u.logits, 0, sizeof(float) * static_cast<size_t>(u.parents) * u.padded);
  if (pass.prior)
    transpose(pass.prior + static_cast<int64_t>(pass.first) * u.parents, u.parents, u.count, u.parents, u.logits,
              u.padded);
  if (!pass.query) return;
  int m = 0;
  for (; m + 4 <= u.parents; m += 4) shared_agreements<4>(u, pass.query, pass.scale, m);
  switch (u.parents - m) {
    case 3: shared_agreements<3>(u, pass.query, pass.scale, m); break;
    case 2: shared_agreements<2>(u, pass.query, pass.scale, m); break;
    case 1: shared_agreements<1>(u, pass.query, pass.scale, m); break;
    default: break;
  }
}

// sums[h][m], from the couplings.
CAPSEDGE_INLINE void all_shared_sums(const SharedVotes& u, float* sums) {
  int m = 0;
  for (; m + 4 <= u.parents; m += 4) shared_sums<4>(u, m);
  switch (u.parents - m) {
    case 3: shared_sums<3>(u, m); break;
    case 2: shared_sums<2>(u, m); break;
    case 1: shared_sums<1>(u, m); break;
    default: break;
  }
  __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(u.elements) * u.lanes);
  transpose(u.products, u.row, u.parents, u.elements, sums, u.lanes);
}

// The masks of W children from c on; zero beyond the last.
CAPSEDGE_INLINE V shared_mask(const float* mask, int c, int count) {
  return c + W <= count ? load(mask + c) : load_some(mask + c, count - c);
}

static void shared_over_parents(const RoutingPass& pass) {
  const float* mask = pass.mask ? pass.mask + pass.first : nullptr;
  const SharedVotes u = shared_votes(pass, mask);
  shared_logits(pass, u);
  for (int c = 0; c < u.count; c += W) {
    V top = load(u.logits + c), total{};
    for (int m = 1; m < u.parents; ++m) top = max(load(u.logits + m * u.padded + c), top);
    if (pass.leaky) {
      top = max(top, V{});
      total = exp_of_negative(-top);
    }
    for (int m = 0; m < u.parents; ++m) {
      float* at = u.logits + m * u.padded + c;
      const V e = exp_of_negative(load(at) - top);
      store(at, e);
      total = total + e;
    }
    const V factor = (mask ? shared_mask(mask, c, u.count) : splat(1.0f)) / total;
    for (int m = 0; m < u.parents; ++m) {
      float* at = u.logits + m * u.padded + c;
      store(at, load(at) * factor);
    }
  }
  all_shared_sums(u, pass.sums);
}

static void shared_over_children(const RoutingPass& pass) {
  const float* mask = pass.mask ? pass.mask + pass.first : nullptr;
  const SharedVotes u = shared_votes(pass, nullptr);
  shared_logits(pass, u);
  float *mass = pass.sums + u.elements * u.lanes, *highest = mass + u.lanes;
  for (int m = 0; m < u.lanes; m += W) {
    store(mass + m, V{});
    store(highest + m, V{});
  }
  for (int m = 0; m < u.parents; ++m) {
    float* mine = u.logits + m * u.padded;
    for (int c = u.count; c < u.padded; ++c) mine[c] = -__builtin_inff();  // no child
    V most = splat(-3.402823466e38f), total{};
    for (int c = 0; c < u.count; c += W) most = max(load(mine + c), most);
    const float top = maximum(most);
    for (int c = 0; c < u.count; c += W) {
      const V e = exp_of_negative(load(mine + c) - top);
      total = total + e;
      store(mine + c, mask ? e * shared_mask(mask, c, u.count) : e);
    }
    mass[m] = sum(total);
    highest[m] = top;
  }
  all_shared_sums(u, pass.sums);
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
