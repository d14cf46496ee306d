#include "masks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "generated/metadata.h"

namespace capsedge::libcapsedge {

namespace {

// Maps in memory, [height][width][maps] with a step from one row to the next.
struct Grid {
  const float* values;
  int64_t height, width, maps, row;
};

// The taps of every target column, one after the other.
void find_columns(int64_t source, int64_t target, MaskScratch& scratch) {
  scratch.firsts.clear();
  scratch.ends.clear();
  scratch.column_weights.clear();
  for (int64_t j = 0; j < target; ++j) {
    scratch.firsts.push_back(taps(source, target, j, scratch.weights));
    scratch.column_weights.insert(scratch.column_weights.end(), scratch.weights.begin(), scratch.weights.end());
    scratch.ends.push_back(static_cast<int64_t>(scratch.column_weights.size()));
  }
}

// to[i] = w[0] rows[0][i], then every further product is added.
void add_line(bool first, float weight, const float* from, int64_t count, float* to) {
  if (first) {
    for (int64_t i = 0; i < count; ++i) to[i] = weight * from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = to[i] + weight * from[i];
  }
}

// Calls take(y, scores) for every row of the resized maps, scores [width][maps]: first along the height, then the width.
template <typename Take>
void resize_maps(const Grid& from, int64_t height, int64_t width, MaskScratch& scratch, Take&& take) {
  if (from.height == height && from.width == width) {
    for (int64_t y = 0; y < height; ++y) take(y, from.values + y * from.row);
    return;
  }
  const int64_t maps = from.maps, line = from.width * maps;
  find_columns(from.width, width, scratch);
  scratch.line.resize(static_cast<size_t>(line));
  scratch.scores.resize(static_cast<size_t>(width * maps));
  for (int64_t y = 0; y < height; ++y) {
    const int64_t first = taps(from.height, height, y, scratch.weights);
    for (size_t k = 0; k < scratch.weights.size(); ++k)
      add_line(k == 0, scratch.weights[k], from.values + (first + static_cast<int64_t>(k)) * from.row, line, scratch.line.data());
    for (int64_t x = 0, begin = 0; x < width; begin = scratch.ends[static_cast<size_t>(x)], ++x) {
      float* const to = scratch.scores.data() + x * maps;
      const float* const left = scratch.line.data() + scratch.firsts[static_cast<size_t>(x)] * maps;
      for (int64_t k = begin; k < scratch.ends[static_cast<size_t>(x)]; ++k)
        add_line(k == begin, scratch.column_weights[static_cast<size_t>(k)], left + (k - begin) * maps, maps, to);
    }
    take(y, scratch.scores.data());
  }
}

uint8_t class_of(const float* scores, int64_t maps, float level) {
  if (maps == 1) return *scores >= level ? 1 : 0;
  return static_cast<uint8_t>(std::max_element(scores, scores + maps) - scores);  // the first of equal ones
}

}  // namespace

float mask_level(double threshold, bool logits) {
  if (!logits) return static_cast<float>(threshold);
  if (threshold == 0 || threshold == 1) return threshold == 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  return static_cast<float>(std::log(threshold / (1 - threshold)));
}

void write_mask(const ScoreMaps& maps, const float* scores, const Preprocessing& p, int64_t height, int64_t width, float level,
                MaskScratch& scratch, uint8_t* mask) {
  const int64_t count = maps.maps;
  scratch.maps.resize(static_cast<size_t>(maps.height * maps.width * count));
  for (int64_t i = 0; i < maps.height * maps.width; ++i)
    for (int64_t k = 0; k < count; ++k) scratch.maps[static_cast<size_t>(i * count + k)] = scores[i * maps.pixel + k * maps.map];
  Grid grid{scratch.maps.data(), maps.height, maps.width, count, maps.width * count};
  if (maps.height != p.height || maps.width != p.width) {
    const int64_t row = p.width * count;
    scratch.whole.resize(static_cast<size_t>(p.height * row));
    resize_maps(grid, p.height, p.width, scratch,
                [&](int64_t y, const float* line) { std::copy_n(line, row, scratch.whole.data() + y * row); });
    grid = {scratch.whole.data(), p.height, p.width, count, row};
  }
  const Placement placed = place(p, height, width);
  grid.values += placed.down() * grid.row + placed.right() * count;
  grid.height = placed.inner.height;
  grid.width = placed.inner.width;
  std::fill(mask, mask + height * width, static_cast<uint8_t>(spec::kUnknownClass));
  resize_maps(grid, placed.part.height, placed.part.width, scratch, [&](int64_t y, const float* line) {
    uint8_t* const to = mask + (placed.top + y) * width + placed.left;
    for (int64_t x = 0; x < placed.part.width; ++x) to[x] = class_of(line + x * count, count, level);
  });
}

}  // namespace capsedge::libcapsedge
