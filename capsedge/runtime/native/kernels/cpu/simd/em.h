// EM routing: the E-step of a block of children and the M-step that follows it, over votes in the first-level cache.
//
// The M-step's mean and variance come from one pass over the children. Σ r V² - (Σ r V)² / Σ r would lose digits when
// votes agree, so squares are taken about a mean that is already known: a block of children contributes Σ r (V - c) and
// Σ r (V - c)², where c is the mean of all blocks before it. Removing the shift then increases the relative error of
// the block's part by at most a factor kHeavy + 1, as long as the block weighs at most kHeavy times as much as all
// blocks before it. Heavier blocks (such as the first) compute their own mean first, in a second sweep over their votes
// in cache, and are merged by the formula of Chan, Golub and LeVeque (1979), which has no such loss.
#pragma once

#include "bundle.h"
#include "level.h"
#include "softmax.h"
#include "votes.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// logits[c][m] = offset[m] - ½ Σ_h (votes[c][h][m] - mean[h][m])² precision[h][m] for C children.
template <int C>
CAPSEDGE_INLINE void log_density(const EmPass& pass, const float* votes, float* logits) {
  const Votes& shape = pass.votes;
  const int parents = shape.parents, lanes = shape.lanes;
  for (int v = 0; v < lanes; v += W) {
    V distance[C] = {};
    for (int h = 0; h < shape.pose_elements; ++h) {
      const V mean = load(pass.mean + h * lanes + v), precision = load(pass.precision + h * lanes + v);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const V d = load(votes + c * shape.tile_stride + h * parents + v) - mean;
        distance[c] = madd(d * d, precision, distance[c]);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      store(logits + c * lanes + v, madd(distance[c], splat(-0.5f), load(pass.offset + v)));
  }
}

// How a part of the children, given its mass, mean and squares, is merged into the moments so far.
struct Merge {
  V share;   // share of the part in the mass of both
  V weight;  // share times the mass gathered before
};
CAPSEDGE_INLINE Merge merge_masses(V before, V part) {
  const V both = before + part;
  const V share = both > V{} ? part / both : V{};
  return {share, share * before};
}
CAPSEDGE_INLINE void merge_element(const Merge& merge, V part_mean, V part_squares, float* mean, float* squares) {
  const V old = load(mean);
  const V step = part_mean - old;
  store(mean, madd(step, merge.share, old));
  store(squares, madd(step * step, merge.weight, load(squares) + part_squares));
}

// Below this, a mass is negligible compared with epsilon, and its inverse may overflow.
CAPSEDGE_INLINE V safe_inverse(V mass) { return mass > splat(1e-30f) ? 1.0f / mass : V{}; }

constexpr float kHeavy = 16.0f;

// Elements of the pose processed together: as many as there are registers for accumulators.
#if defined(CAPSEDGE_AVX512) || defined(CAPSEDGE_NEON)
constexpr int kTogether = 8;
#else
constexpr int kTogether = 4;
#endif

// Adds H elements of the poses of a block's children to the moments, from lane v on.
template <int H>
CAPSEDGE_INLINE void add_light_block(const EmPass& pass, int count, const float* votes, const float* share, int h,
                                     int v, V inverse_total) {
  const Votes& shape = pass.votes;
  const int parents = shape.parents, lanes = shape.lanes;
  float* means = pass.moments.mean + h * lanes + v;
  float* squares = pass.moments.squares + h * lanes + v;
  const float* vote = votes + h * parents + v;
  V shift[H], first[H] = {}, second[H] = {};
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) shift[i] = load(means + i * lanes);
  for (int c = 0; c < count; ++c) {
    const V r = load(share + c * lanes + v);
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) {
      const V d = load(vote + c * shape.tile_stride + i * parents) - shift[i];
      const V weighted = d * r;
      first[i] = first[i] + weighted;
      second[i] = madd(weighted, d, second[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) {
    const V step = first[i] * inverse_total;
    store(means + i * lanes, shift[i] + step);
    store(squares + i * lanes, load(squares + i * lanes) + madd(-step, first[i], second[i]));
  }
}

template <int H>
CAPSEDGE_INLINE void add_heavy_block(const EmPass& pass, int count, const float* votes, const float* share, int h,
                                     int v, V inverse_mass, const Merge& merge) {
  const Votes& shape = pass.votes;
  const int parents = shape.parents, lanes = shape.lanes;
  const float* vote = votes + h * parents + v;
  V mean[H] = {}, squares[H] = {};
  for (int c = 0; c < count; ++c) {
    const V r = load(share + c * lanes + v);
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) mean[i] = madd(load(vote + c * shape.tile_stride + i * parents), r, mean[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) mean[i] = mean[i] * inverse_mass;
  for (int c = 0; c < count; ++c) {
    const V r = load(share + c * lanes + v);
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) {
      const V d = load(vote + c * shape.tile_stride + i * parents) - mean[i];
      squares[i] = madd(d * d, r, squares[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i)
    merge_element(merge, mean[i], squares[i], pass.moments.mean + (h + i) * lanes + v,
                  pass.moments.squares + (h + i) * lanes + v);
}

// Adds a block's children, weighted by their shares, to the moments of one vector of parents.
static void add_block(const EmPass& pass, int count, const float* votes, const float* share, int v) {
  const int lanes = pass.votes.lanes, elements = pass.votes.pose_elements;
  V mass{};
  for (int c = 0; c < count; ++c) mass = mass + load(share + c * lanes + v);
  const V before = load(pass.moments.mass + v), total = before + mass;
  store(pass.moments.mass + v, total);
  int h = 0;
  if (any(mass > before * kHeavy)) {
    const Merge merge = merge_masses(before, mass);
    const V inverse = safe_inverse(mass);
    for (; h + kTogether <= elements; h += kTogether)
      add_heavy_block<kTogether>(pass, count, votes, share, h, v, inverse, merge);
    for (; h < elements; ++h) add_heavy_block<1>(pass, count, votes, share, h, v, inverse, merge);
  } else {
    const V inverse = safe_inverse(total);
    for (; h + kTogether <= elements; h += kTogether)
      add_light_block<kTogether>(pass, count, votes, share, h, v, inverse);
    for (; h < elements; ++h) add_light_block<1>(pass, count, votes, share, h, v, inverse);
  }
}

static void clear_moments(int elements, int lanes, const Moments& moments) {
  for (int v = 0; v < lanes; v += W) store(moments.mass + v, V{});
  for (int64_t i = 0; i < static_cast<int64_t>(elements) * lanes; i += W) {
    store(moments.mean + i, V{});
    store(moments.squares + i, V{});
  }
}

// Adds the coordinates of the child's position in the grid to its votes.
CAPSEDGE_INLINE void add_additions(const EmPass& pass, int child, float* votes) {
  const Votes& shape = pass.votes;
  const float* values = additions_at(pass, shape.children[child]);
  for (int e = 0; e < pass.additions.count; ++e) {
    float* vote = votes + static_cast<int64_t>(pass.additions.elements[e]) * shape.parents;
    for (int m = 0; m < shape.parents; ++m) vote[m] += values[e];
  }
}

static void block_votes(const EmPass& pass, int first, int count, float* votes) {
  const Votes& shape = pass.votes;
  if (shape.bundle > 1) {
    for (int c = 0; c < count; ++c) bundle_votes(pass, first + c, votes + c * shape.tile_stride);
    return;
  }
  make_votes(shape, pass.pose, shape.inner, shape.rows, first, count, votes);
  if (pass.additions.count)
    for (int c = 0; c < count; ++c) add_additions(pass, first + c, votes + c * shape.tile_stride);
}

// Converts logits to responsibilities times activations.
static void child_shares(const EmPass& pass, int first, int count, float* share) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes;
  float a[kBlock];
  for (int c = 0; c < count; ++c) a[c] = pass.activation[shape.children[first + c].capsule];
  if (!pass.first_pass) return softmax(count, share, shape.parents, lanes, false, a);
  for (int c = 0; c < count; ++c)
    for (int v = 0; v < lanes; v += W) store(share + c * lanes + v, splat(a[c] / pass.first_divisor));
}

static void bundle_shares(const EmPass& pass, int first, int count, float* share) {
  const int lanes = pass.votes.lanes;
  for (int c = 0; c < count; ++c, share += lanes) {
    const Child* children = pass.votes.children + static_cast<int64_t>(first + c) * W;
    float values[W];
    for (int lane = 0; lane < W; ++lane)
      values[lane] = children[lane].capsule < 0 ? 0.0f : pass.activation[children[lane].capsule];
    const V a = load(values);
    if (!pass.first_pass) {
      bundle_softmax(share, lanes, a);
    } else {
      for (int v = 0; v < lanes; v += W) store(share + v, a / pass.first_divisor);
    }
  }
}

static void em(const EmPass& pass) {
  const Votes& shape = pass.votes;
  const int lanes = shape.lanes, elements = shape.pose_elements;
  float* share = pass.scratch;
  float* tile = pass.scratch + kBlock * lanes;
  clear_moments(elements, lanes, pass.moments);

  for (int first = pass.first; first < pass.last; first += kBlock) {
    const int count = pass.last - first < kBlock ? pass.last - first : kBlock;
    float* votes = pass.kept ? pass.kept + first * shape.tile_stride : tile;
    if (pass.first_pass || !pass.kept) block_votes(pass, first, count, votes);
    if (!pass.first_pass) {
      int c = 0;
      for (; c + 8 <= count; c += 8) log_density<8>(pass, votes + c * shape.tile_stride, share + c * lanes);
      for (; c < count; ++c) log_density<1>(pass, votes + c * shape.tile_stride, share + c * lanes);
    }
    if (shape.bundle > 1) {
      bundle_shares(pass, first, count, share);
    } else {
      child_shares(pass, first, count, share);
    }
    for (int v = 0; v < lanes; v += W) add_block(pass, count, votes, share, v);
  }
}

static void em_merge(int elements, int lanes, const Moments& into, const Moments& from) {
  for (int v = 0; v < lanes; v += W) {
    const V before = load(into.mass + v), part = load(from.mass + v);
    const Merge merge = merge_masses(before, part);
    for (int64_t at = v; at < static_cast<int64_t>(elements) * lanes; at += lanes)
      merge_element(merge, load(from.mean + at), load(from.squares + at), into.mean + at, into.squares + at);
    store(into.mass + v, before + part);
  }
}

static void em_finish(const EmFinish& f) {
  const int lanes = f.lanes;
  for (int v = 0; v < lanes; v += W) {
    const V mass = load(f.moments.mass + v);
    const V inverse = 1.0f / (mass + f.epsilon);
    const V shrink = mass * inverse;  // the specification divides by mass + epsilon, not by the mass
    V log_variances{};
    for (int h = 0; h < f.pose_elements; ++h) {
      const int64_t at = static_cast<int64_t>(h) * lanes + v;
      const V centre = load(f.moments.mean + at);
      const V mean = centre * shrink;
      const V gap = centre - mean;
      const V squares = madd(gap * gap, mass, load(f.moments.squares + at));
      const V variance = madd(squares, inverse, splat(f.variance_epsilon));
      store(f.mean + at, mean);
      store(f.precision + at, 1.0f / variance);
      log_variances = log_variances + log(variance);
    }
    const V half = log_variances * 0.5f;
    const V cost = madd(splat(static_cast<float>(f.pose_elements)), load(f.beta_u + v), half) * (mass + f.cost_epsilon);
    const V logit = (load(f.beta_a + v) - cost) * f.inverse_temperature;
    // z = exp -|logit|: sigmoid and its logarithm without overflow.
    const V z = exp_of_negative(-abs(logit));
    const V sigmoid = select(logit < V{}, z, splat(1.0f)) / (z + 1.0f);
    const V log_sigmoid = f.activation_epsilon > 0 ? log(sigmoid + f.activation_epsilon)
                                                   : select(logit < V{}, logit, V{}) - log(z + 1.0f);
    store(f.activation + v, sigmoid);
    store(f.offset + v, log_sigmoid - half);
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
