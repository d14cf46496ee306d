// Routing by agreement: the part that dynamic routing and routing over given votes share.
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

// Start logits [I or 1][J], padded to whole vectors.
struct Prior {
  Prior(const Tensor& tensor, const Level& level);
  Floats values;
  int64_t rows;
  bool zero;
};

// Inputs that change the couplings of single images, each padded to whole vectors.
struct Couplings {
  Buffer made;            // priors, if they are not `prior.values`
  const float* prior;     // [N or 1][I][J], or null: all are zero
  int64_t prior_stride;   // 0 if all images have the same
  Buffer mask;            // [N or 1][I]; empty for none
  int64_t mask_stride;
};

// inputs: image_prior [N, I, J] and mask [N, I] begin at index `first`.
Couplings couplings_of(const Prior& prior, const std::vector<Tensor>& in, size_t first, int64_t children,
                       int64_t parents, const Level& level);

// Routes `images` whose votes are planned, `units` at a time. pose: poses of all images, `image_stride` floats apart.
struct AgreementRun {
  Votes votes;
  int64_t images, children, units, weight_floats;
  const float* pose;
  int64_t image_stride;
  const Couplings& couplings;
  const float* bias;  // [parents][pose elements]
  float* out;         // [images][parents][pose elements]
};
void route_by_agreement(const Agreement& rule, const AgreementRun& run, const Level& level, const Threads& threads);

}  // namespace capsedge
