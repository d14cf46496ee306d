// The work after a pass: it adds the parts of a unit's children in order, then computes the parents' poses and, for the
// next pass, the values with which children are compared.
#pragma once

#include "over_children.h"
#include "squash.h"

namespace capsedge {
namespace cuda {

// Location of the parts: consecutive in global memory, or in the shared memories of a cluster.
struct StoredParts {
  const float* first;
  int32_t room;
  CAPSEDGE_DEVICE const float* operator()(int part) const { return first + static_cast<int64_t>(part) * room; }
};
struct ClusterParts {
  const Block& b;
  const float* first;
  CAPSEDGE_DEVICE const float* operator()(int part) const { return b.shared_of(first, part); }
};

// A parent being finished by a group of lanes: each lane has the elements `lane`, `lane` + `width`, ... of its pose.
struct Parent {
  int number, lane, width;
  bool there;  // if not, its lanes only take part in the sums of others
};

// The sum of `term` over a parent's elements, given the place of each and its index among the elements of all parents.
// All lanes of the block must call it.
template <typename Term>
CAPSEDGE_DEVICE float sum_of(const Block& b, const Layer& l, const Parent& p, const Term& term) {
  float sum = 0.0f;
  if (p.there)
    for (int h = p.lane; h < l.pose_elements; h += p.width) sum += term(place_of(l, p.number, h), p.number * l.pose_elements + h);
  return b.group_sum(sum, p.width);
}

// The same, without a sum.
template <typename Step>
CAPSEDGE_DEVICE void each_of(const Layer& l, const Parent& p, const Step& step) {
  if (p.there)
    for (int h = p.lane; h < l.pose_elements; h += p.width) step(place_of(l, p.number, h), p.number * l.pose_elements + h);
}

// Merging: a lane adds all parts of its elements to the first part, where no other lane reads or writes them, and
// computes the parent's mass. Masses and tops stay unchanged, because other lanes read them.
template <typename Parts>
CAPSEDGE_DEVICE float merge_over_children(const Layer& l, const Parts& parts, const Parent& p, float* partial) {
  const int mass_at = l.parents * l.pose_elements + p.number, top_at = mass_at + l.parents;
  float top = partial[top_at];
  for (int s = 1; s < l.splits; ++s) top = fmaxf(top, parts(s)[top_at]);
  const auto merged = [&](int at) {
    float sum = partial[at] * shrunk(partial[top_at], top);
    for (int s = 1; s < l.splits; ++s) sum += parts(s)[at] * shrunk(parts(s)[top_at], top);
    return sum;
  };
  const float mass = merged(mass_at);
  each_of(l, p, [&](int at, int) { partial[at] = merged(at); });
  return mass;
}

template <typename Parts>
CAPSEDGE_DEVICE float merge_moments(const Layer& l, const Parts& parts, const Parent& p, float* partial) {
  const int size = l.parents * l.pose_elements, mass_at = 2 * size + p.number;
  each_of(l, p, [&](int at, int) {
    float mass = partial[mass_at], mean = partial[at], squares = partial[size + at];
    for (int s = 1; s < l.splits; ++s) {
      const float* other = parts(s);
      add_moments(mass, other[mass_at], other[at], other[size + at], mean, squares);
      mass += other[mass_at];
    }
    partial[at] = mean;
    partial[size + at] = squares;
  });
  float mass = partial[mass_at];
  for (int s = 1; s < l.splits; ++s) mass += parts(s)[mass_at];
  return mass;
}

// Returns the parent's mass; 1 if there is none.
template <typename Parts>
CAPSEDGE_DEVICE float merge_parts(const Layer& l, const Parts& parts, const Parent& p, float* partial) {
  if (!p.there) return 1.0f;
  if (l.over_children) return merge_over_children(l, parts, p, partial);
  if (l.operation == CAPSEDGE_CUDA_EM) return merge_moments(l, parts, p, partial);
  if (l.splits > 1)
    each_of(l, p, [&](int at, int) {
      float sum = partial[at];
      for (int s = 1; s < l.splits; ++s) sum += parts(s)[at];
      partial[at] = sum;
    });
  return 1.0f;
}

template <typename T>
CAPSEDGE_DEVICE void finish_dynamic(const Block& b, const Layer& l, int64_t to, const Parent& p, const float* sums,
                                    float mass, float* state, bool first, bool last) {
  const float share = l.over_children ? 1.0f / mass : 1.0f;
  const auto biased = [&](int at, int element) { return fmaf(sums[at], share, load<T>(l.bias, element)); };
  const float n2 = sum_of(b, l, p, [&](int at, int element) { return biased(at, element) * biased(at, element); });
  const float factor = squash_factor(n2, l.epsilon), norm = 1.0f / sqrtf(n2 + l.epsilon);
  each_of(l, p, [&](int at, int element) {
    const float s = biased(at, element), v = s * (l.elementwise ? squash_factor(s * s, l.epsilon) : factor);
    if (last) {
      store<T>(l.out_pose, to + element, v);
    } else {
      // The logits after t passes are the prior plus the scaled product of the vote and the v of all passes, or of the
      // last pass only.
      const float agreeing = l.agreement_scale * (l.normalize ? s * norm : v);
      state[at] = first || l.replace ? agreeing : state[at] + agreeing;
    }
  });
}

// After the first pass, whose couplings were 1 / parents, votes are compared with the sum of all votes.
template <typename T>
CAPSEDGE_DEVICE void finish_self_attention(const Block& b, const Layer& l, int64_t to, const Parent& p,
                                           const float* sums, float* state, bool last) {
  if (!last) {
    const float scale = l.parents / sqrtf(static_cast<float>(l.pose_elements));
    each_of(l, p, [&](int at, int) { state[at] = scale * sums[at]; });
    return;
  }
  const float length = sqrtf(sum_of(b, l, p, [&](int at, int) { return sums[at] * sums[at]; }));
  const float factor = -expm1f(-length) / (length + l.epsilon);
  each_of(l, p, [&](int at, int element) { store<T>(l.out_pose, to + element, sums[at] * factor); });
}

template <typename T>
CAPSEDGE_DEVICE void finish_attention(const Block& b, const Layer& l, int64_t to, const Parent& p, const float* sums) {
  const int P = l.pose_elements, first = p.number * P;
  const float mean = sum_of(b, l, p, [&](int at, int) { return sums[at]; }) / P;
  const float variance = sum_of(b, l, p, [&](int at, int) { return (sums[at] - mean) * (sums[at] - mean); }) / P;
  const float factor = 1.0f / sqrtf(variance + l.epsilon);
  each_of(l, p, [&](int at, int element) {
    const int h = element - first;
    store<T>(l.out_pose, to + element, fmaf((sums[at] - mean) * factor, load<T>(l.scale, h), load<T>(l.bias, h)));
  });
}

template <typename T>
CAPSEDGE_DEVICE void finish_em(const Block& b, const Layer& l, int64_t unit, const Parent& p, const float* partial,
                               float mass, float* state, float inverse_temperature, bool last) {
  const int P = l.pose_elements, size = l.parents * P;
  const float inverse = 1.0f / (mass + l.epsilon);
  const float shrink = mass * inverse;  // the specification divides by mass + epsilon, not by the mass
  const float added = l.variance_epsilon > 0.0f ? l.variance_epsilon : l.epsilon;
  const float logarithms = sum_of(b, l, p, [&](int at, int element) {
    const float centre = partial[at], mean = centre * shrink, gap = centre - mean;
    const float variance = fmaf(fmaf(gap * gap, mass, partial[size + at]), inverse, added);
    if (last) {
      store<T>(l.out_pose, unit * size + element, mean);
    } else {
      state[at] = mean;
      state[size + at] = 1.0f / variance;
    }
    return logf(variance);
  });
  if (!p.there || p.lane) return;
  const float half = 0.5f * logarithms;
  const float cost = fmaf(static_cast<float>(P), load<T>(l.beta_u, p.number), half) * (mass + l.cost_epsilon);
  const float argument = inverse_temperature * (load<T>(l.beta_a, p.number) - cost);
  // z = exp -|argument|: sigmoid and its logarithm without overflow.
  const float z = expf(-fabsf(argument));
  const float activation = (argument < 0.0f ? z : 1.0f) / (1.0f + z);
  if (last) {
    store<T>(l.out_activation, unit * l.parents + p.number, activation);
  } else {
    state[2 * size + p.number] = (l.activation_epsilon > 0.0f ? logf(activation + l.activation_epsilon)
                                                              : (argument < 0.0f ? argument : 0.0f) - log1pf(z)) - half;
  }
}

template <typename T, typename Parts>
CAPSEDGE_DEVICE void finish(const Block& b, const Layer& l, int64_t unit, int iteration, const Parts& parts,
                            float* partial, float* state) {
  const bool last = iteration == l.iterations - 1;
  const int64_t to = unit * l.parents * l.pose_elements;
  int width = 1;
  while (width < l.pose_elements && width < kWarp) width *= 2;
  const int together = b.threads() / width, group = b.thread() / width;
  // All groups loop equally often, because shuffles need whole warps.
  for (int begin = 0; begin < l.parents; begin += together) {
    const Parent p{begin + group, b.thread() % width, width, begin + group < l.parents};
    const float mass = merge_parts(l, parts, p, partial);
    if (by_agreement(l)) {
      finish_dynamic<T>(b, l, to, p, partial, mass, state, iteration == 0, last);
    } else if (l.operation == CAPSEDGE_CUDA_ATTENTION) {
      finish_attention<T>(b, l, to, p, partial);
    } else if (l.operation == CAPSEDGE_CUDA_SELF_ATTENTION) {
      finish_self_attention<T>(b, l, to, p, partial, state, last);
    } else {
      finish_em<T>(b, l, unit, p, partial, mass, state, l.inverse_temperatures[iteration], last);
    }
  }
  b.sync();
}

// The parents with which attention compares votes, in FP32 and scaled.
template <typename T>
CAPSEDGE_DEVICE void begin_attention(const Block& b, const Layer& l, int64_t unit, float* state) {
  const int64_t from = l.parent_images == 1 ? unit % l.positions : unit;
  const int size = l.parents * l.pose_elements;
  for (int at = b.thread(); at < size; at += b.threads())
    state[place_of(l, at / l.pose_elements, at % l.pose_elements)] =
        l.agreement_scale * load<T>(l.parent, from * size + at);
  b.sync();
}

}  // namespace cuda
}  // namespace capsedge
