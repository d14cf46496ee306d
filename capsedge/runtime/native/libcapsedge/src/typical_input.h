// Typical input: ranges of five measurements; an image outside of them is atypical (capsedge/runtime/metadata/typical_input.py).
// docs/reference/metadata.md ("Nothing to see") specifies the rule. Built without contraction, as preprocessing.
#pragma once

#include "preprocessing.h"

namespace capsedge::libcapsedge {

struct Json;


struct Interval {
  double low = 0, high = 0;

  bool has(double value) const { return low <= value && value <= high; }
};

struct TypicalInput {
  Interval contrast, roughness, frame_level, frame_contrast, level;
};

// The typical input that a file's metadata states. Throws JsonError.
TypicalInput typical_input_of(const Json& json);

// Why a prepared image is atypical; null if it is typical. The text is static.
const char* atypical_reason(const TypicalInput& typical, const Preprocessing& preprocessing, const float* image);

}  // namespace capsedge::libcapsedge
