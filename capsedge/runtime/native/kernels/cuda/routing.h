// Shared by all passes: logits and couplings of a group of lanes, and incremental moments.
#pragma once

#include "access.h"

namespace capsedge {
namespace cuda {

template <int P>
CAPSEDGE_DEVICE float agreement(const float* query, const float* vote) {
  float sum = 0.0f;
#pragma unroll
  for (int h = 0; h < P; ++h) sum = fmaf(query[h], vote[h], sum);
  return sum;
}

// Logarithm of a parent's density at a vote, plus that of its activation; `offset` is the part that does not depend on
// the vote.
template <int P>
CAPSEDGE_DEVICE float log_density(const float* vote, const float* mean, const float* precision, float offset) {
  float distance = 0.0f;
#pragma unroll
  for (int h = 0; h < P; ++h) {
    const float d = vote[h] - mean[h];
    distance = fmaf(d * d, precision[h], distance);
  }
  return fmaf(-0.5f, distance, offset);
}

// Replaces the logits of a group's lanes by the couplings of its child. A lane without a parent has kLowest.
template <int Q>
CAPSEDGE_DEVICE void group_softmax(const Block& b, const Layer& l, float* logit) {
  float top = l.leaky ? 0.0f : kLowest, sum = 0.0f;
#pragma unroll
  for (int q = 0; q < Q; ++q) top = fmaxf(top, logit[q]);
  top = b.group_max(top, l.group);
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const float e = expf(logit[q] - top);
    logit[q] = logit[q] == kLowest ? 0.0f : e;  // the top may be near the lowest float
    sum += logit[q];
  }
  sum = b.group_sum(sum, l.group);
  if (l.leaky) sum += expf(-top);
#pragma unroll
  for (int q = 0; q < Q; ++q) logit[q] = quick_quotient(logit[q], sum);  // 1 to the number of parents and one
}

// Adds one more vote to weighted moments (West 1979), in a form that does not subtract nearly equal numbers.
template <int P>
CAPSEDGE_DEVICE void add_vote(float share, const float* vote, float& mass, float* mean, float* squares) {
  const float before = mass;
  mass += share;
  const float ratio = mass > 0.0f ? share / mass : 0.0f, weight = ratio * before;
#pragma unroll
  for (int h = 0; h < P; ++h) {
    const float d = vote[h] - mean[h];
    mean[h] = fmaf(d, ratio, mean[h]);
    squares[h] = fmaf(d * d, weight, squares[h]);
  }
}

// Merges the moments of one element with those of other votes (Chan, Golub and LeVeque 1979); `before` is the mass so
// far.
CAPSEDGE_DEVICE void add_moments(float before, float other_mass, float other_mean, float other_squares, float& mean,
                                 float& squares) {
  const float both = before + other_mass;
  const float part = both > 0.0f ? other_mass / both : 0.0f, step = other_mean - mean;
  squares = fmaf(step * step, part * before, squares + other_squares);
  mean = fmaf(step, part, mean);
}

}  // namespace cuda
}  // namespace capsedge
