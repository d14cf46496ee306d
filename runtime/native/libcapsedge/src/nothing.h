// Whether there is anything to see in an image: spans of five measurements (runtime/nothing.py). docs/reference/metadata.md
// ("Nothing to see") specifies the rule. Built without contraction, as preprocessing.
#pragma once

#include <string>

#include "preprocessing.h"

namespace capsedge::libcapsedge {

struct Json;

constexpr char kNothingProperty[] = "capsedge_nothing";
constexpr int32_t kLeastSide = 3;  // a frame, and something inside it

struct Interval {
  double low = 0, high = 0;

  bool has(double value) const { return low <= value && value <= high; }
};

struct Nothing {
  Interval contrast, roughness, frame_level, frame_contrast, level;
};

// The criterion in a file's property. Throws JsonError.
Nothing read_nothing(const std::string& text);

// Why there is nothing to see in a prepared image; null if there is something. The text is static.
const char* nothing_in(const Nothing& criterion, const Preprocessing& preprocessing, const float* image);

}  // namespace capsedge::libcapsedge
