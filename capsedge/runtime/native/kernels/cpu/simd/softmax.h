// Softmax over the parents of each child.
#pragma once

#include "math.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// Works in place over logits[lanes] of C children that are `lanes` apart; lanes from `parents` on become zero. Each
// share is multiplied by its child's weight (or one, if null). `leaky` adds a parent whose logit is zero and whose
// share is dropped. N is the number of vectors of a child, or 0 if it is only known at run time. With few vectors,
// several children are processed together, since a single one is a long chain of dependent steps.
template <int C, int N>
CAPSEDGE_INLINE void softmax_together(float* logits, int parents, int lanes, bool leaky, const float* weights) {
  const int count = N ? N : lanes / W;
  const VI real = lanes_below(parents - (lanes - W));  // of the last vector
  float highest[C], mass[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    float* mine = logits + c * lanes;
    V top = select(real, load(mine + lanes - W), splat(-__builtin_inff()));
    store(mine + lanes - W, top);
#pragma GCC unroll 4
    for (int v = 0; v < count - 1; ++v) top = max(load(mine + v * W), top);
    highest[c] = maximum(top);
    if (leaky && highest[c] < 0) highest[c] = 0;
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    // All parents at minus infinity: 0/0 below, as everywhere else.
    float* mine = logits + c * lanes;
    V total{};
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) {
      const V e = exp_of_negative(load(mine + v * W) - highest[c]);
      store(mine + v * W, e);
      total = total + e;
    }
    mass[c] = sum(total);
    if (leaky) mass[c] += exp_of_negative(splat(-highest[c]))[0];
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const V factor = splat((weights ? weights[c] : 1.0f) / mass[c]);
    float* mine = logits + c * lanes;
#pragma GCC unroll 4
    for (int v = 0; v < count; ++v) store(mine + v * W, load(mine + v * W) * factor);
  }
}

template <int N>
CAPSEDGE_INLINE void softmax_children(int count, float* logits, int parents, int lanes, bool leaky,
                                      const float* weights) {
  int c = 0;
  if (N != 0)
    for (; c + 4 <= count; c += 4)
      softmax_together<4, N>(logits + c * lanes, parents, lanes, leaky, weights ? weights + c : nullptr);
  for (; c < count; ++c)
    softmax_together<1, N>(logits + c * lanes, parents, lanes, leaky, weights ? weights + c : nullptr);
}

CAPSEDGE_INLINE void softmax(int count, float* logits, int parents, int lanes, bool leaky, const float* weights) {
  switch (lanes / W) {
    case 1: softmax_children<1>(count, logits, parents, lanes, leaky, weights); break;
    case 2: softmax_children<2>(count, logits, parents, lanes, leaky, weights); break;
    default: softmax_children<0>(count, logits, parents, lanes, leaky, weights); break;
  }
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
