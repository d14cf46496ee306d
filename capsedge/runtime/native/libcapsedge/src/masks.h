// From maps of scores to the mask of an image: docs/reference/runtime.md ("Masks"), the same bits as capsedge/runtime/session/masks.py.
#pragma once

#include <cstdint>
#include <vector>

#include "preprocessing.h"

namespace capsedge::libcapsedge {

// Scores of one image in an output: of pixel (y, x) and map k they are at y * width * pixel + x * pixel + k * map.
struct ScoreMaps {
  int64_t height = 0, width = 0, maps = 0;
  int64_t pixel = 1, map = 0;  // steps
};

// Memory for intermediate steps, reused for every image.
struct MaskScratch {
  std::vector<float> maps, whole, line, scores, weights;
  std::vector<float> column_weights;
  std::vector<int64_t> firsts, ends;  // of each column
};

// The score of one map from which a pixel is foreground.
float mask_level(double threshold, bool logits);

// Writes [height, width] of the image's own size: the class of each pixel, spec::kUnknown where it was cropped.
void write_mask(const ScoreMaps& maps, const float* scores, const Preprocessing& preprocessing, int64_t height, int64_t width,
                float level, MaskScratch& scratch, uint8_t* mask);

}  // namespace capsedge::libcapsedge
