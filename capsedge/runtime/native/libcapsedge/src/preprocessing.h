// From pixels to the input of a model: docs/reference/runtime.md ("Images", "Resizing") to the last bit, as capsedge/runtime/images/preprocessing.py
// and capsedge/runtime/images/preprocessing.py do it. Built without contraction, so that a product and a sum are rounded each on its own.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "capsedge.h"
#include "generated/metadata.h"

namespace capsedge::libcapsedge {

using spec::Resize;
// How each image is normalized by itself: not at all; to mean 0 and deviation 1; or to values from 0 to 255.
using spec::PerImage;

struct Preprocessing {
  int32_t height = 0, width = 0, channels = 0;
  double scale = spec::kDefaultScale;
  std::vector<double> mean, std;
  Resize resize = spec::kDefaultResize;
  PerImage per_image = spec::kDefaultPerImage;
  bool channels_last = spec::kDefaultLayout == spec::Layout::kNhwc;
  bool bgr = spec::kDefaultOrder == spec::Order::kBgr;  // the input is blue, green, red; images are always red, green, blue

  int64_t values() const { return int64_t{height} * width * channels; }
  std::array<int64_t, 3> shape() const;  // of the input for one image

  // What is wrong with it; empty if nothing.
  std::string wrong() const;
};

// Memory for intermediate steps, reused for every image.
struct PrepareScratch {
  std::vector<float> row, tall, part, weights, planes;
};

// Writes [channels, height, width], or [height, width, channels]. `name` is what errors (CAPSEDGE_USAGE) call the image.
void prepare(const Preprocessing& preprocessing, const capsedge_image& image, bool invert, const std::string& name,
             PrepareScratch& scratch, float* to);

}  // namespace capsedge::libcapsedge
