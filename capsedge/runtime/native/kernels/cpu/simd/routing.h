// Logit-free routing, the template of dynamic and attention routing: query -> agreement -> softmax over the parents ->
// weighted sum. Children are processed in blocks whose votes stay in the first-level cache.
#pragma once

#include "level.h"
#include "shared_votes.h"
#include "softmax.h"
#include "squash.h"
#include "votes.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// logits[c][m] = scale · Σ_h query[h][m] votes[c][h][m] (+ prior[c][m]) for C children.
template <int C>
CAPSEDGE_INLINE void agreement(const Votes& shape, const float* votes, const float* query, float scale,
                               const float* prior, float* logits) {
  const int parents = shape.parents, lanes = shape.lanes;
  for (int v = 0; v < lanes; v += W) {
    V agreed[C] = {};
    for (int h = 0; h < shape.pose_elements; ++h) {
      const V q = load(query + h * lanes + v);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        agreed[c] = madd(load(votes + c * shape.tile_stride + h * parents + v), q, agreed[c]);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      V logit = agreed[c] * scale;
      if (prior) logit = logit + load(prior + c * parents + v);
      store(logits + c * lanes + v, logit);
    }
  }
}

// sums[h][m] += Σ_c couplings[c][m] votes[c][h][m] for H elements of the pose.
template <int H>
CAPSEDGE_INLINE void weighted_sum(const Votes& shape, int count, const float* votes, const float* couplings,
                                  int h, float* sums) {
  const int parents = shape.parents, lanes = shape.lanes;
  for (int v = 0; v < lanes; v += W) {
    V total[H];
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) total[i] = load(sums + (h + i) * lanes + v);
    for (int c = 0; c < count; ++c) {
      const V share = load(couplings + c * lanes + v);
      const float* mine = votes + c * shape.tile_stride;
#pragma GCC unroll 8
      for (int i = 0; i < H; ++i) total[i] = madd(load(mine + (h + i) * parents + v), share, total[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) store(sums + (h + i) * lanes + v, total[i]);
  }
}

// The votes of a block of children for all units: in the tile, or where kept votes are stored.
CAPSEDGE_INLINE float* block_votes(const RoutingPass& pass, int first, int count) {
  const Votes& shape = pass.votes;
  float* votes =
      pass.kept ? pass.kept + first * shape.tile_stride : pass.scratch + kBlock * static_cast<int64_t>(shape.lanes);
  if (pass.have_kept) return votes;
  if (shape.given) {
    for (int c = 0; c < count; ++c)
      transpose(pass.pose + static_cast<int64_t>(first + c) * shape.pose_size, shape.pose_elements, shape.parents,
                shape.pose_elements, votes + c * shape.tile_stride, shape.parents);
    return votes;
  }
  const int rows = shape.rows * pass.units;
  const int64_t row_stride = pass.units > 1 ? pass.unit_stride : shape.inner;
  make_votes(shape, pass.pose, row_stride, rows, first, count, votes);
  if (shape.bias) add_constant(shape, pass.units, first, count, votes);
  return votes;
}

// Logits of a block of children of one unit, [child][lanes]: agreements with the query, plus any priors.
CAPSEDGE_INLINE void block_logits(const RoutingPass& pass, int unit, const float* votes, int first, int count,
                                  float* logits) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes;
  const float* query = pass.query ? pass.query + unit * pass.sum_stride : nullptr;
  const float* prior =
      pass.prior ? pass.prior + unit * pass.prior_stride + static_cast<int64_t>(first) * shape.parents : nullptr;
  if (query) {
    int c = 0;
    for (; c + 8 <= count; c += 8)
      agreement<8>(shape, votes + c * shape.tile_stride, query, pass.scale, prior ? prior + c * shape.parents : nullptr,
                   logits + c * lanes);
    for (; c < count; ++c)
      agreement<1>(shape, votes + c * shape.tile_stride, query, pass.scale, prior ? prior + c * shape.parents : nullptr,
                   logits + c * lanes);
  } else if (prior) {
    for (int c = 0; c < count; ++c)
      for (int v = 0; v < lanes; v += W) store(logits + c * lanes + v, load(prior + c * shape.parents + v));
  } else {
    for (int i = 0; i < count * lanes; i += W) store(logits + i, V{});
  }
}

CAPSEDGE_INLINE void block_sums(const Votes& shape, int count, const float* votes, const float* couplings, float* sums) {
  int h = 0;
  for (; h + 8 <= shape.pose_elements; h += 8) weighted_sum<8>(shape, count, votes, couplings, h, sums);
  for (; h < shape.pose_elements; ++h) weighted_sum<1>(shape, count, votes, couplings, h, sums);
}

// couplings[c][m] += bias[c][m].
CAPSEDGE_INLINE void add_rows(const float* bias, int count, int parents, int lanes, float* couplings) {
  for (int c = 0; c < count; ++c)
    for (int v = 0; v < lanes; v += W) {
      float* at = couplings + c * lanes + v;
      store(at, load(at) + load(bias + static_cast<int64_t>(c) * parents + v));
    }
}

// Replaces the votes of masked children by zeros, since they may be NaN.
CAPSEDGE_INLINE void clear_masked(const Votes& shape, const float* mask, int count, float* votes) {
  for (int c = 0; c < count; ++c)
    if (mask[c] == 0)
      __builtin_memset(votes + c * shape.tile_stride, 0, sizeof(float) * shape.pose_elements * shape.parents);
}

static void over_parents(const RoutingPass& pass) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes;
  const int64_t unit_votes = static_cast<int64_t>(shape.pose_elements) * shape.parents;
  float* couplings = pass.scratch;
  for (int64_t i = 0; i < pass.units * pass.sum_stride; i += W) store(pass.sums + i, V{});
  // Without a query and priors, all couplings are equal.
  const bool uniform = pass.query == nullptr && pass.prior == nullptr && pass.mask == nullptr;
  if (uniform) {
    for (int i = 0; i < kBlock * lanes; i += W) store(couplings + i, V{});
    softmax(kBlock, couplings, shape.parents, lanes, pass.leaky, nullptr);
  }
  for (int first = pass.first; first < pass.last; first += kBlock) {
    const int count = pass.last - first < kBlock ? pass.last - first : kBlock;
    float* votes = block_votes(pass, first, count);
    for (int u = 0; u < pass.units; ++u) {
      float* mine = votes + u * unit_votes;
      const float* mask = pass.mask ? pass.mask + u * pass.mask_stride + first : nullptr;
      if (mask && !pass.have_kept) clear_masked(shape, mask, count, mine);
      if (!uniform) {
        block_logits(pass, u, mine, first, count, couplings);
        softmax(count, couplings, shape.parents, lanes, pass.leaky, mask);
      }
      if (pass.bias) add_rows(pass.bias + static_cast<int64_t>(first) * shape.parents, count, shape.parents, lanes, couplings);
      block_sums(shape, count, mine, couplings, pass.sums + u * pass.sum_stride);
    }
  }
}

static void route(const RoutingPass& pass) {
  if (pass.votes.of_all) {
    shared_over_parents(pass);
  } else {
    over_parents(pass);
  }
}

// Replaces the logits of a block by exp (logit - top), and rescales its unit's sums and mass to the top so far.
CAPSEDGE_INLINE void shares_of_top(const Votes& shape, int count, float* logits, float* sums) {
  const int lanes = shape.lanes, elements = shape.pose_elements;
  float *mass = sums + elements * lanes, *top = mass + lanes;
  const VI real = lanes_below(shape.parents - (lanes - W));  // of the last vector
  for (int v = 0; v < lanes; v += W) {
    const V before = load(top + v);
    V highest = before;
    for (int c = 0; c < count; ++c) {
      float* mine = logits + c * lanes + v;
      // Lanes without a parent are undefined.
      if (v == lanes - W) store(mine, select(real, load(mine), V{}));
      highest = max(load(mine), highest);
    }
    V total = load(mass + v);
    if (maximum(highest - before) > 0) {
      const V shrink = exp_of_negative(before - highest);
      store(top + v, highest);
      total = total * shrink;
      for (int h = 0; h < elements; ++h) store(sums + h * lanes + v, load(sums + h * lanes + v) * shrink);
    }
    for (int c = 0; c < count; ++c) {
      const V e = exp_of_negative(load(logits + c * lanes + v) - highest);
      store(logits + c * lanes + v, e);
      total = total + e;
    }
    store(mass + v, total);
  }
}

// Votes are read once, as in the softmax over parents: its sum and its highest logit are updated along with the sums.
static void over_children(const RoutingPass& pass) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes;
  const int64_t unit_votes = static_cast<int64_t>(shape.pose_elements) * shape.parents;
  float* shares = pass.scratch;
  const bool uniform = pass.query == nullptr && pass.prior == nullptr;
  for (int u = 0; u < pass.units; ++u) {
    float* sums = pass.sums + u * pass.sum_stride;
    float* top = sums + (shape.pose_elements + 1) * lanes;
    for (float* at = sums; at < top; at += W) store(at, V{});
    for (int v = 0; v < lanes; v += W) store(top + v, splat(uniform ? 0.0f : -3.402823466e38f));
  }
  if (uniform)
    for (int i = 0; i < kBlock * lanes; i += W) store(shares + i, splat(1.0f));
  for (int first = pass.first; first < pass.last; first += kBlock) {
    const int count = pass.last - first < kBlock ? pass.last - first : kBlock;
    const float* votes = block_votes(pass, first, count);
    for (int u = 0; u < pass.units; ++u) {
      const float* mine = votes + u * unit_votes;
      float* sums = pass.sums + u * pass.sum_stride;
      if (uniform) {
        float* mass = sums + shape.pose_elements * lanes;
        for (int v = 0; v < lanes; v += W) store(mass + v, load(mass + v) + static_cast<float>(count));
      } else {
        block_logits(pass, u, mine, first, count, shares);
        shares_of_top(shape, count, shares, sums);
      }
      if (pass.mask) {
        const float* mask = pass.mask + u * pass.mask_stride + first;
        for (int c = 0; c < count; ++c)
          for (int v = 0; v < lanes; v += W) {
            float* at = shares + c * lanes + v;
            store(at, uniform ? splat(mask[c]) : load(at) * mask[c]);
          }
      }
      block_sums(shape, count, mine, shares, sums);
    }
  }
}

static void route_over_children(const RoutingPass& pass) {
  if (pass.votes.of_all) {
    shared_over_children(pass);
  } else {
    over_children(pass);
  }
}

static void merge_over_children(int elements, int lanes, const float* other, float* sums) {
  for (int v = 0; v < lanes; v += W) {
    const int top = (elements + 1) * lanes + v;
    const V here = load(sums + top), there = load(other + top), highest = max(here, there);
    const V mine = exp_of_negative(here - highest), others = exp_of_negative(there - highest);
    store(sums + top, highest);
    for (int h = 0; h <= elements; ++h)
      store(sums + h * lanes + v, madd(load(other + h * lanes + v), others, load(sums + h * lanes + v) * mine));
  }
}

static void finish_agreement(const AgreementFinish& f, const float* sum, float* pose, float* query) {
  for (int v = 0; v < f.lanes; v += W) {
    V share = splat(1.0f);
    if (f.over_children) share = share / load(sum + f.pose_elements * f.lanes + v);
    const auto biased = [&](int h) { return madd(load(sum + h * f.lanes + v), share, load(f.bias + h * f.lanes + v)); };
    V n2{};
    for (int h = 0; h < f.pose_elements; ++h) {
      const V s = biased(h);
      n2 = madd(s, s, n2);
    }
    const V whole = squash_factor(n2, f.epsilon), norm = rsqrt(n2 + f.epsilon);
    for (int h = 0; h < f.pose_elements; ++h) {
      const V s = biased(h);
      const V factor = f.elementwise ? squash_factor(s * s, f.epsilon) : whole;
      const V agreeing = f.normalize ? norm : factor;
      store(pose + h * f.lanes + v, s * factor);
      store(query + h * f.lanes + v, f.replace ? s * agreeing : madd(s, agreeing, load(query + h * f.lanes + v)));
    }
  }
}

static void finish_exponential(const float* sum, int elements, int lanes, float epsilon, float* pose) {
  for (int v = 0; v < lanes; v += W) {
    V n2{};
    for (int h = 0; h < elements; ++h) {
      const V s = load(sum + h * lanes + v);
      n2 = madd(s, s, n2);
    }
    const V n = sqrt(n2);
    const V factor = (1.0f - exp_of_negative(-n)) / (n + epsilon);
    for (int h = 0; h < elements; ++h) store(pose + h * lanes + v, load(sum + h * lanes + v) * factor);
  }
}

static void finish_norm(const float* sum, const float* scale, const float* bias, int elements, int lanes,
                        float epsilon, float* pose) {
  for (int v = 0; v < lanes; v += W) {
    V mean{}, variance{};
    for (int h = 0; h < elements; ++h) mean = mean + load(sum + h * lanes + v);
    mean = mean / static_cast<float>(elements);
    for (int h = 0; h < elements; ++h) {
      const V d = load(sum + h * lanes + v) - mean;
      variance = madd(d, d, variance);
    }
    const V factor = rsqrt(variance / static_cast<float>(elements) + epsilon);
    for (int h = 0; h < elements; ++h) {
      const V d = load(sum + h * lanes + v) - mean;
      store(pose + h * lanes + v, madd(d * factor, splat(scale[h]), splat(bias[h])));
    }
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
