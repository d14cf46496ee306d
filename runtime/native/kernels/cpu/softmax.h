// Softmax over the parents of one child.
#pragma once

#include "math.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

// In place over logits[lanes]; lanes from `parents` on become zero. Each share is multiplied by `weight`.
// `leaky` adds a parent whose logit is zero and whose share is dropped.
CAPSEDGE_INLINE void softmax(float* logits, int parents, int lanes, bool leaky, float weight) {
  const V never = splat(-__builtin_inff());
  const VI real = lanes_below(parents - (lanes - W));  // of the last vector
  store(logits + lanes - W, select(real, load(logits + lanes - W), never));
  V top = leaky ? V{} : never;
  for (int v = 0; v < lanes; v += W) top = max(load(logits + v), top);
  const float highest = maximum(top);
  // All parents at minus infinity: 0/0 below, as everywhere else.
  V total{};
  for (int v = 0; v < lanes; v += W) {
    const V e = exp(load(logits + v) - highest);
    store(logits + v, e);
    total = total + e;
  }
  float mass = sum(total);
  if (leaky) mass += exp(splat(0.0f) - highest)[0];
  const V factor = splat(weight / mass);
  for (int v = 0; v < lanes; v += W) store(logits + v, load(logits + v) * factor);
}

}  // namespace CAPSEDGE_LEVEL
}  // namespace capsedge
