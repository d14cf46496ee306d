// What follows a pass: the parts of a unit's children added in order, then the parents' poses and, for the next pass,
// what their children are compared with.
#pragma once

#include "over_children.h"
#include "squash.h"

namespace capsedge {
namespace cuda {

// Where the parts are: in global memory one behind another, or in the shared memories of a cluster.
struct StoredParts {
  const float* first;
  int32_t floats;
  CAPSEDGE_DEVICE const float* operator()(int part) const { return first + static_cast<int64_t>(part) * floats; }
};
struct ClusterParts {
  const Block& b;
  const float* first;
  CAPSEDGE_DEVICE const float* operator()(int part) const { return b.shared_of(first, part); }
};

// All parts into the first, over the children.
template <typename Parts>
CAPSEDGE_DEVICE void merge_over_children(const Block& b, const Layer& l, const Parts& parts, float* partial) {
  const int size = l.parents * l.pose_elements;
  // Element `at` of the sums, or a mass, of a parent.
  const auto merged = [&](int at, int parent) {
    float top = partial[size + l.parents + parent], sum = partial[at];
    for (int s = 1; s < l.splits; ++s) {
      const float* other = parts(s);
      const float theirs = other[size + l.parents + parent], high = fmaxf(top, theirs);
      sum = sum * shrunk(top, high) + other[at] * shrunk(theirs, high);
      top = high;
    }
    return sum;
  };
  for (int at = b.thread(); at < size + l.parents; at += b.threads())
    partial[at] = merged(at, at < size ? at / l.pose_elements : at - size);
  b.sync();  // the first part's tops are not used again
}

// All parts into the first.
template <typename Parts>
CAPSEDGE_DEVICE void merge_parts(const Block& b, const Layer& l, const Parts& parts, float* partial) {
  const int size = l.parents * l.pose_elements;
  if (l.splits == 1) return;
  if (l.over_children) {
    merge_over_children(b, l, parts, partial);
    return;
  }
  if (l.operation != CAPSEDGE_CUDA_EM) {
    for (int at = b.thread(); at < size; at += b.threads()) {
      float sum = partial[at];
      for (int s = 1; s < l.splits; ++s) sum += parts(s)[at];
      partial[at] = sum;
    }
    b.sync();
    return;
  }
  for (int at = b.thread(); at < size; at += b.threads()) {
    const int parent = at / l.pose_elements;
    float mass = partial[2 * size + parent], mean = partial[at], squares = partial[size + at];
    for (int s = 1; s < l.splits; ++s) {
      const float* other = parts(s);
      const float added = other[2 * size + parent];
      add_moments(mass, added, other[at], other[size + at], mean, squares);
      mass += added;
    }
    partial[at] = mean;
    partial[size + at] = squares;
  }
  b.sync();
  for (int m = b.thread(); m < l.parents; m += b.threads()) {
    float mass = partial[2 * size + m];
    for (int s = 1; s < l.splits; ++s) mass += parts(s)[2 * size + m];
    partial[2 * size + m] = mass;
  }
  b.sync();
}

template <typename T>
CAPSEDGE_DEVICE void finish_dynamic(const Layer& l, int64_t unit, int m, const float* partial, float* state,
                                    bool first, bool last) {
  const int P = l.pose_elements;
  const float* sums = partial + m * P;
  const float share = l.over_children ? 1.0f / partial[l.parents * P + m] : 1.0f;
  float n2 = 0.0f;
  for (int h = 0; h < P; ++h) {
    const float s = fmaf(sums[h], share, load<T>(l.bias, m * P + h));
    n2 = fmaf(s, s, n2);
  }
  const float factor = squash_factor(n2, l.epsilon), norm = 1.0f / sqrtf(n2 + l.epsilon);
  for (int h = 0; h < P; ++h) {
    const float s = fmaf(sums[h], share, load<T>(l.bias, m * P + h));
    const float v = s * (l.elementwise ? squash_factor(s * s, l.epsilon) : factor);
    if (last) {
      store<T>(l.out_pose, (unit * l.parents + m) * P + h, v);
    } else {
      // The logits after t passes are the prior and the scaled vote times v of all of them, or of the last alone.
      const float agreeing = l.agreement_scale * (l.normalize ? s * norm : v);
      state[m * P + h] = first || l.replace ? agreeing : state[m * P + h] + agreeing;
    }
  }
}

// After the first pass, the sum of all votes, whose couplings were 1 / parents, becomes what votes agree with.
template <typename T>
CAPSEDGE_DEVICE void finish_self_attention(const Layer& l, int64_t unit, int m, const float* partial, float* state,
                                           bool last) {
  const int P = l.pose_elements;
  const float* sums = partial + m * P;
  if (!last) {
    const float scale = l.parents / sqrtf(static_cast<float>(P));
    for (int h = 0; h < P; ++h) state[m * P + h] = scale * sums[h];
    return;
  }
  float n2 = 0.0f;
  for (int h = 0; h < P; ++h) n2 = fmaf(sums[h], sums[h], n2);
  const float length = sqrtf(n2), factor = -expm1f(-length) / (length + l.epsilon);
  for (int h = 0; h < P; ++h) store<T>(l.out_pose, (unit * l.parents + m) * P + h, sums[h] * factor);
}

template <typename T>
CAPSEDGE_DEVICE void finish_attention(const Layer& l, int64_t unit, int m, const float* partial) {
  const int P = l.pose_elements;
  const float* sums = partial + m * P;
  float mean = 0.0f, variance = 0.0f;
  for (int h = 0; h < P; ++h) mean += sums[h];
  mean /= P;
  for (int h = 0; h < P; ++h) variance = fmaf(sums[h] - mean, sums[h] - mean, variance);
  const float factor = 1.0f / sqrtf(variance / P + l.epsilon);
  for (int h = 0; h < P; ++h)
    store<T>(l.out_pose, (unit * l.parents + m) * P + h,
             fmaf((sums[h] - mean) * factor, load<T>(l.scale, h), load<T>(l.bias, h)));
}

template <typename T>
CAPSEDGE_DEVICE void finish_em(const Layer& l, int64_t unit, int m, const float* partial, float* state,
                               float inverse_temperature, bool last) {
  const int P = l.pose_elements, size = l.parents * P;
  const float mass = partial[2 * size + m], inverse = 1.0f / (mass + l.epsilon);
  const float shrink = mass * inverse;  // the specification divides by mass + epsilon, not by the mass
  float logarithms = 0.0f;
  for (int h = 0; h < P; ++h) {
    const int at = m * P + h;
    const float centre = partial[at], mean = centre * shrink, gap = centre - mean;
    const float variance = fmaf(fmaf(gap * gap, mass, partial[size + at]), inverse, l.epsilon);
    logarithms += logf(variance);
    if (last) {
      store<T>(l.out_pose, (unit * l.parents + m) * P + h, mean);
    } else {
      state[at] = mean;
      state[size + at] = 1.0f / variance;
    }
  }
  const float half = 0.5f * logarithms;
  const float cost = fmaf(static_cast<float>(P), load<T>(l.beta_u, m), half) * mass;
  const float argument = inverse_temperature * (load<T>(l.beta_a, m) - cost);
  // z = exp -|argument|: sigmoid and its logarithm without overflow.
  const float z = expf(-fabsf(argument));
  if (last) {
    store<T>(l.out_activation, unit * l.parents + m, (argument < 0.0f ? z : 1.0f) / (1.0f + z));
  } else {
    state[2 * size + m] = (argument < 0.0f ? argument : 0.0f) - log1pf(z) - half;
  }
}

template <typename T, typename Parts>
CAPSEDGE_DEVICE void finish(const Block& b, const Layer& l, int64_t unit, int iteration, const Parts& parts,
                            float* partial, float* state) {
  merge_parts(b, l, parts, partial);
  const bool last = iteration == l.iterations - 1;
  for (int m = b.thread(); m < l.parents; m += b.threads()) {
    if (by_agreement(l)) {
      finish_dynamic<T>(l, unit, m, partial, state, iteration == 0, last);
    } else if (l.operation == CAPSEDGE_CUDA_ATTENTION) {
      finish_attention<T>(l, unit, m, partial);
    } else if (l.operation == CAPSEDGE_CUDA_SELF_ATTENTION) {
      finish_self_attention<T>(l, unit, m, partial, state, last);
    } else {
      finish_em<T>(l, unit, m, partial, state, l.inverse_temperatures[iteration], last);
    }
  }
  b.sync();
}

// The parents that attention compares votes with, in FP32 and scaled.
template <typename T>
CAPSEDGE_DEVICE void begin_attention(const Block& b, const Layer& l, int64_t unit, float* state) {
  const int64_t from = l.parent_images == 1 ? unit % l.positions : unit;
  const int size = l.parents * l.pose_elements;
  for (int at = b.thread(); at < size; at += b.threads())
    state[at] = l.agreement_scale * load<T>(l.parent, from * size + at);
  b.sync();
}

}  // namespace cuda
}  // namespace capsedge
