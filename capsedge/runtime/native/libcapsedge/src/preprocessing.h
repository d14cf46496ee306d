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

struct Size {
  int64_t height, width;
};

// The part of an image that is kept, the size it is resized to, and the whole input, where it is centred.
struct Placement {
  Size part, inner, target;
  int64_t top = 0, left = 0;  // of the part in the image

  bool padded() const { return inner.height != target.height || inner.width != target.width; }
  int64_t down() const { return (target.height - inner.height) / 2; }
  int64_t right() const { return (target.width - inner.width) / 2; }
};

// Of an image of this size.
Placement place(const Preprocessing& preprocessing, int64_t height, int64_t width);

// The first source pixel of target pixel `index`, and the weights of it and the following pixels.
int64_t taps(int64_t source, int64_t target, int64_t index, std::vector<float>& weights);

// Memory for intermediate steps, reused for every image.
struct PrepareScratch {
  std::vector<float> row, tall, part, weights, planes;
};

// Writes [channels, height, width], or [height, width, channels]. `name` is what errors (CAPSEDGE_USAGE) call the image.
void prepare(const Preprocessing& preprocessing, const capsedge_image& image, bool invert, const std::string& name,
             PrepareScratch& scratch, float* to);

}  // namespace capsedge::libcapsedge
