// EM routing to few parents: W children are placed side by side in a vector, most of which the parents would leave
// empty. To the rest of the kernel, a bundle is one child with W virtual parents for each parent: every lane
// accumulates its own moments, which are merged at the end of a pass.
#pragma once

#include "level.h"
#include "math.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// The values added to votes for a child's position.
CAPSEDGE_INLINE const float* additions_at(const EmPass& pass, const Child& child) {
  const Additions& a = pass.additions;
  const int64_t row = pass.row0 + child.row, column = pass.column0 + child.column;
  return a.values + (row * a.width + column) * a.count;
}

// Votes of one bundle, out[r][l][parent][lane]. R rows; K is the inner size, or 0 if it is only known at run time.
template <int R, int K>
CAPSEDGE_INLINE void bundle_rows(const Votes& v, const float* pose, const float* weight, float* out) {
  const int inner = K ? K : v.inner;
  for (int64_t at = 0; at < static_cast<int64_t>(v.columns) * v.parents; at += W, weight += inner * W) {
    V votes[R] = {};
#pragma GCC unroll 4
    for (int k = 0; k < inner; ++k) {
      const V w = load(weight + k * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) votes[r] = madd(load(pose + (r * inner + k) * W), w, votes[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) store(out + static_cast<int64_t>(r) * v.columns * v.parents + at, votes[r]);
  }
}

static void bundle_votes(const EmPass& pass, int bundle, float* out) {
  const Votes& v = pass.votes;
  const Child* children = v.children + static_cast<int64_t>(bundle) * W;
  const int row = v.columns * v.parents;
  float* pose = pass.bundle_pose;
  for (int lane = 0; lane < W; ++lane) {
    const float* from = pass.pose + static_cast<int64_t>(children[lane].capsule) * v.pose_size;
    for (int p = 0; p < v.pose_size; ++p) pose[p * W + lane] = children[lane].capsule < 0 ? 0.0f : from[p];
  }
  const float* weight = v.weight + children[0].weight / W * v.weight_size;
  int r = 0;
  for (; r + 4 <= v.rows; r += 4, pose += 4 * v.inner * W) {
    if (v.inner == 4) {
      bundle_rows<4, 4>(v, pose, weight, out + static_cast<int64_t>(r) * row);
    } else {
      bundle_rows<4, 0>(v, pose, weight, out + static_cast<int64_t>(r) * row);
    }
  }
  for (; r < v.rows; ++r, pose += v.inner * W)
    bundle_rows<1, 0>(v, pose, weight, out + static_cast<int64_t>(r) * row);
  for (int e = 0; e < pass.additions.count; ++e) {
    float values[W];
    for (int lane = 0; lane < W; ++lane) values[lane] = additions_at(pass, children[lane])[e];
    float* vote = out + static_cast<int64_t>(pass.additions.elements[e]) * v.parents;
    for (int at = 0; at < v.parents; at += W) store(vote + at, load(vote + at) + load(values));
  }
}

// In place over logits[parent][lane] of one bundle; every share is multiplied by its child's weight.
CAPSEDGE_INLINE void bundle_softmax(float* logits, int lanes, V weights) {
  V top = load(logits);
  for (int at = W; at < lanes; at += W) top = max(load(logits + at), top);
  V mass{};
  for (int at = 0; at < lanes; at += W) {
    const V e = exp_of_negative(load(logits + at) - top);
    store(logits + at, e);
    mass = mass + e;
  }
  const V factor = weights / mass;
  for (int at = 0; at < lanes; at += W) store(logits + at, load(logits + at) * factor);
}

// Merges the moments of every lane, [parent][lane], into those of the parents. Lanes of `to` beyond the parents become
// zero.
static void em_fold(int elements, int parents, int lanes, const Moments& from, const Moments& to) {
  const int64_t wide = static_cast<int64_t>(parents) * W;
  for (int m = 0; m < lanes; ++m) {
    if (m >= parents) {
      to.mass[m] = 0;
      for (int h = 0; h < elements; ++h) to.mean[h * lanes + m] = to.squares[h * lanes + m] = 0;
      continue;
    }
    const V masses = load(from.mass + m * W);
    const float mass = sum(masses);
    const V shares = masses * (mass > 1e-30f ? 1.0f / mass : 0.0f);
    to.mass[m] = mass;
    for (int h = 0; h < elements; ++h) {
      const V means = load(from.mean + h * wide + m * W);
      const float mean = sum(means * shares);
      const V gap = means - mean;
      to.mean[h * lanes + m] = mean;
      to.squares[h * lanes + m] = sum(madd(gap * gap, masses, load(from.squares + h * wide + m * W)));
    }
  }
}

// Copies [row][lanes] to [row][parent][lane]: every lane of a bundle has the same query.
static void em_spread(int rows, int parents, int lanes, const float* from, float* to) {
  for (int row = 0; row < rows; ++row)
    for (int m = 0; m < parents; ++m, to += W) store(to, splat(from[row * lanes + m]));
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
