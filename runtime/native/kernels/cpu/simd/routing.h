// Logit-free routing, the template of dynamic and attention routing: query -> agreement -> softmax over the
// parents -> weighted sum. Children go through in blocks whose votes stay in the first-level cache.
#pragma once

#include "level.h"
#include "softmax.h"
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
      const float* vote = votes + c * shape.tile_stride + h * parents + v;
#pragma GCC unroll 8
      for (int i = 0; i < H; ++i) total[i] = madd(load(vote + i * parents), share, total[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) store(sums + (h + i) * lanes + v, total[i]);
  }
}

// couplings[c][m] += bias[c][m].
CAPSEDGE_INLINE void add_rows(const float* bias, int count, int parents, int lanes, float* couplings) {
  for (int c = 0; c < count; ++c)
    for (int v = 0; v < lanes; v += W) {
      float* at = couplings + c * lanes + v;
      store(at, load(at) + load(bias + static_cast<int64_t>(c) * parents + v));
    }
}

static void route(const RoutingPass& pass) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes, elements = shape.pose_elements;
  const int64_t unit_votes = static_cast<int64_t>(elements) * shape.parents;
  const int64_t unit_sums = static_cast<int64_t>(elements) * lanes;
  float* couplings = pass.scratch;
  float* tile = pass.scratch + kBlock * lanes;
  for (int64_t i = 0; i < pass.units * unit_sums; i += W) store(pass.sums + i, V{});
  // With nothing to agree with and no priors all children share alike.
  const bool uniform = pass.query == nullptr && pass.prior == nullptr;
  if (uniform) {
    for (int i = 0; i < kBlock * lanes; i += W) store(couplings + i, V{});
    softmax(kBlock, couplings, shape.parents, lanes, pass.leaky, nullptr);
  }

  for (int first = pass.first; first < pass.last; first += kBlock) {
    const int count = pass.last - first < kBlock ? pass.last - first : kBlock;
    float* votes = pass.kept ? pass.kept + first * shape.tile_stride : tile;
    if (!pass.have_kept) {
      const int rows = shape.rows * pass.units;
      const int64_t row_stride = pass.units > 1 ? pass.unit_stride : shape.inner;
      make_votes(shape, pass.pose, row_stride, rows, first, count, votes);
    }
    for (int u = 0; u < pass.units; ++u) {
      const float* mine = votes + u * unit_votes;
      const float* prior = pass.prior ? pass.prior + static_cast<int64_t>(first) * shape.parents : nullptr;
      if (pass.query) {
        const float* query = pass.query + u * unit_sums;
        int c = 0;
        for (; c + 8 <= count; c += 8)
          agreement<8>(shape, mine + c * shape.tile_stride, query, pass.scale,
                       prior ? prior + c * shape.parents : nullptr, couplings + c * lanes);
        for (; c < count; ++c)
          agreement<1>(shape, mine + c * shape.tile_stride, query, pass.scale,
                       prior ? prior + c * shape.parents : nullptr, couplings + c * lanes);
      } else if (prior) {
        for (int c = 0; c < count; ++c)
          for (int v = 0; v < lanes; v += W)
            store(couplings + c * lanes + v, load(prior + c * shape.parents + v));
      }
      if (!uniform) softmax(count, couplings, shape.parents, lanes, pass.leaky, nullptr);
      if (pass.bias) add_rows(pass.bias + static_cast<int64_t>(first) * shape.parents, count, shape.parents, lanes, couplings);
      float* sums = pass.sums + u * unit_sums;
      int h = 0;
      for (; h + 8 <= elements; h += 8) weighted_sum<8>(shape, count, mine, couplings, h, sums);
      for (; h < elements; ++h) weighted_sum<1>(shape, count, mine, couplings, h, sums);
    }
  }
}

static void finish_squash(const float* sum, const float* bias, int elements, int lanes, float epsilon, float* pose,
                          float* query) {
  for (int v = 0; v < lanes; v += W) {
    V n2{};
    for (int h = 0; h < elements; ++h) {
      const V s = load(sum + h * lanes + v) + load(bias + h * lanes + v);
      n2 = madd(s, s, n2);
    }
    const V factor = n2 / (n2 + 1.0f) * rsqrt(n2 + epsilon);
    for (int h = 0; h < elements; ++h) {
      const V s = load(sum + h * lanes + v) + load(bias + h * lanes + v);
      store(pose + h * lanes + v, s * factor);
      store(query + h * lanes + v, madd(s, factor, load(query + h * lanes + v)));
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
