#include "typical_input.h"

#include <cmath>

#include "generated/metadata.h"
#include "json.h"

namespace capsedge::libcapsedge {

namespace {

Interval interval_of(const Json& json, const char* name) {
  const std::vector<Json>& ends = json.member(name, Json::kArray).items;
  if (ends.size() != 2) throw JsonError(std::string(name) + " has " + std::to_string(ends.size()) + " values, wanted 2");
  const Interval span{ends[0].real(), ends[1].real()};
  if (!(span.low <= span.high)) throw JsonError(std::string("the span of ") + name + " ends before it begins");
  return span;
}

// An image as rows of `across` neighbours, `step` values apart; rows are `across * step` values long.
struct Grid {
  size_t planes, rows, across, step;

  explicit Grid(const Preprocessing& p)
      : planes(static_cast<size_t>(p.channels_last ? 1 : p.channels)), rows(static_cast<size_t>(p.height)),
        across(static_cast<size_t>(p.width)), step(static_cast<size_t>(p.channels_last ? p.channels : 1)) {}

  size_t length() const { return across * step; }
  size_t values() const { return planes * rows * length(); }
  size_t pairs() const { return planes * step * (rows * (across - 1) + (rows - 1) * across); }

  // Calls f with the position of every value of the frame, in memory order.
  template <typename F>
  void frame(F&& f) const {
    for (size_t line = 0; line < planes * rows; ++line) {
      const size_t row = line % rows, begin = line * length(), end = begin + length();
      const bool whole = row == 0 || row + 1 == rows;
      for (size_t i = begin; i < (whole ? end : begin + step); ++i) f(i);
      if (whole) continue;
      for (size_t i = end - step; i < end; ++i) f(i);
    }
  }
};

// Squared differences of neighbours: first along rows, then along columns.
double roughness_sum(const Grid& grid, const float* image) {
  const size_t length = grid.length(), plane = grid.rows * length;
  double sum = 0;
  const auto add = [&](size_t a, size_t b) {
    const double step = double{image[b]} - double{image[a]};
    sum += step * step;
  };
  for (size_t row = 0; row < grid.planes * grid.rows; ++row)
    for (size_t i = 0; i + grid.step < length; ++i) add(row * length + i, row * length + i + grid.step);
  for (size_t p = 0; p < grid.planes; ++p)
    for (size_t i = 0; i + length < plane; ++i) add(p * plane + i, p * plane + i + length);
  return sum;
}

struct Frame {
  double mean = 0, spread = 0;
};

Frame frame_of(const Grid& grid, const float* image) {
  double sum = 0, squares = 0;
  size_t count = 0;
  grid.frame([&](size_t i) { sum += double{image[i]}, ++count; });
  const double mean = sum / static_cast<double>(count);
  grid.frame([&](size_t i) {
    const double off = double{image[i]} - mean;
    squares += off * off;
  });
  return {mean, std::sqrt(squares / static_cast<double>(count))};
}

// `below` or `above` for a value outside its range, otherwise null.
const char* outside(const Interval& span, double value, const char* below, const char* above) {
  return span.has(value) ? nullptr : value < span.low ? below : above;
}

}  // namespace

TypicalInput typical_input_of(const Json& json) {
  json.only(spec::kTypicalInputMembers);
  const TypicalInput n{interval_of(json, "contrast"), interval_of(json, "roughness"), interval_of(json, "frame_level"),
                       interval_of(json, "frame_contrast"), interval_of(json, "level")};
  if (!(n.contrast.low > 0)) throw JsonError("the span of contrast begins at 0, where every image is blank");
  const Json* const images = json.find("images");
  const Json* const checksum = json.find("data_sha256");
  if ((images && images->whole() < 0) || (checksum && checksum->string().size() > 64))
    throw JsonError("the images of the spans are not stated as a number and a checksum");
  return n;
}

const char* atypical_reason(const TypicalInput& n, const Preprocessing& preprocessing, const float* image) {
  const Grid grid(preprocessing);
  const auto count = static_cast<double>(grid.values());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < grid.values(); ++i) sum += double{image[i]};
  const double mean = sum / count;
  for (size_t i = 0; i < grid.values(); ++i) {
    const double off = double{image[i]} - mean;
    squares += off * off;
  }
  const double variance = squares / count, contrast = std::sqrt(variance);
  const char* why = outside(n.contrast, contrast, "less contrast than in any training image", "more contrast than in any training image");
  if (why) return why;  // the rest is relative to the contrast
  const double rough = roughness_sum(grid, image) / static_cast<double>(grid.pairs()) / (2 * variance);
  why = outside(n.roughness, rough, "smoother content than in any training image", "rougher content than in any training image");
  if (why) return why;
  const Frame frame = frame_of(grid, image);
  why = outside(n.frame_level, (frame.mean - mean) / contrast, "a darker frame than in any training image",
                "a lighter frame than in any training image");
  if (why) return why;
  why = outside(n.frame_contrast, frame.spread / contrast, "a plainer frame than in any training image",
                "a busier frame than in any training image");
  if (why) return why;
  return outside(n.level, mean, "a lower mean than in any training image", "a higher mean than in any training image");
}

}  // namespace capsedge::libcapsedge
