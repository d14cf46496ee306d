// Runs passes of logit-free routing over units (images or output positions) and children, in parallel.
#pragma once

#include <functional>

#include "support/plan.h"

namespace capsedge {

// Neighbouring units whose windows are evenly spaced.
struct Group {
  const float* pose;
  int64_t unit;  // number of the first
  int units;
};

struct Routing {
  Votes votes;
  int64_t children;
  int64_t weight_floats;
  int passes;
  std::vector<Group> groups;
  int64_t unit_stride;
  float scale;
  const float* prior;  // of the first unit, or null
  int64_t prior_stride;
  const float* mask;  // of the first unit, or null
  int64_t mask_stride;
  bool leaky;
  bool over_children;  // the softmax is over the children; the sum that `finish` gets has its mass behind it
  bool replace;        // priors belong to the first pass only
  const float* bias;   // likewise, added to the couplings of all passes except the first
  // The query of the first pass, [elements][lanes]; without it, the first pass has no agreement.
  std::function<void(int64_t unit, float* query)> start;
  // Turns the sum of a pass into the query of the next one, or into the output after the last.
  std::function<void(int64_t unit, bool last, float* sum, float* query)> finish;
};

void route(const Routing& routing, const Level& level, const Threads& threads);

}  // namespace capsedge
