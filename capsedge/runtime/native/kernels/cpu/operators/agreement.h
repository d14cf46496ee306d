// Routing by agreement: what dynamic routing and routing over given votes share.
#pragma once

#include <optional>

#include "operator.h"
#include "router.h"

namespace capsedge {

// The attributes.
struct Agreement {
  explicit Agreement(const Attributes& attributes);
  int iterations;
  bool leaky, over_children, replace, normalize, elementwise;
  float scale, epsilon;
};

// Start logits, with room for whole vectors behind them.
struct Prior {
  Prior(const Tensor& tensor, const Level& level);
  Floats values;
  bool zero;
};

// Routes `images` whose votes are planned, `units` at a time. pose: of all images, `image_stride` floats apart.
struct AgreementRun {
  Votes votes;
  int64_t images, children, units, weight_floats;
  const float* pose;
  int64_t image_stride;
  const Prior& prior;
  const float* bias;  // [parents][pose elements]
  float* out;         // [images][parents][pose elements]
};
void route_by_agreement(const Agreement& rule, const AgreementRun& run, const Level& level, const Threads& threads);

}  // namespace capsedge
