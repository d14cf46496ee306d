#include "preprocessing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "failure.h"
#include "vocabulary.h"

namespace capsedge::libcapsedge {

namespace {

// Luma of ITU-R BT.601 in 1/65536.
constexpr float kRed = 19595.0f, kGreen = 38470.0f, kBlue = 7471.0f, kUnit = 65536.0f;

// Largest size of the image's aspect ratio within the target; halves round up.
Size fit(Size from, Size within) {
  if (from.height * within.width >= from.width * within.height)
    return {within.height, std::max<int64_t>(1, (2 * from.width * within.height + from.height) / (2 * from.height))};
  return {std::max<int64_t>(1, (2 * from.height * within.width + from.width) / (2 * from.width)), within.width};
}

std::string to_text(const capsedge_image& image) {
  return std::to_string(image.width) + "x" + std::to_string(image.height);
}

int64_t bytes_of(int32_t type) { return type == CAPSEDGE_FLOAT32 ? 4 : type == CAPSEDGE_UINT16 ? 2 : 1; }

void check_image(const capsedge_image& image, int32_t channels, const std::string& name) {
  if (image.height < 1 || image.width < 1) fail_usage(name + " has no pixels.", "It has " + to_text(image) + ".", "Use another image.");
  if (image.pixels == nullptr) fail_usage(name + " has no pixels.", "Its pointer is null.");
  if (std::max(image.height, image.width) > limits::kImageSide)
    fail_usage(name + " is too large.", "It has " + to_text(image) + " pixels, a side may have " + std::to_string(limits::kImageSide) + ".",
               "Make the image smaller.");
  if (int64_t{image.height} * image.width > limits::kImagePixels)
    fail_usage(name + " is too large.", "It has " + to_text(image) + " pixels, the limit is " + std::to_string(limits::kImagePixels) + ".",
               "Make the image smaller.");
  const bool picture = channels == 1 || channels == 3;
  if (picture ? image.channels < 1 || image.channels > 4 : image.channels != channels)
    fail_usage(name + " has " + std::to_string(image.channels) + " channels.",
               "Expected: " + (picture ? std::string("1, 2, 3 or 4") : std::to_string(channels)) + " channels.",
               "Put the channels last, and drop those that the model does not take.");
  if (image.type != CAPSEDGE_UINT8 && image.type != CAPSEDGE_UINT16 && image.type != CAPSEDGE_BOOL &&
      image.type != CAPSEDGE_FLOAT32)
    fail_usage(name + " has the type " + std::to_string(image.type) + ".",
               "Pixels are CAPSEDGE_UINT8, CAPSEDGE_UINT16, CAPSEDGE_BOOL, or CAPSEDGE_FLOAT32 from 0 to 1.");
  const int64_t row = int64_t{image.width} * image.channels * bytes_of(image.type);
  if (image.stride != 0 && std::abs(image.stride) < row)
    fail_usage(name + " has a stride of " + std::to_string(image.stride) + " bytes.",
               "A row of it takes " + std::to_string(row) + ".", "Give the bytes from one row to the next, or 0.");
}

// Rows of an image as floats from 0 to 255, in the model's channels.
class Rows {
 public:
  Rows(const capsedge_image& image, int32_t wanted, bool invert, const std::string& name, std::vector<float>& scratch)
      : image_(image),
        wanted_(wanted),
        invert_(invert),
        name_(name),
        stride_(image.stride ? image.stride : int64_t{image.width} * image.channels * bytes_of(image.type)),
        values_(scratch) {}

  // Pixels [left, left + width) of row `y` into `to`.
  void read(int64_t y, int64_t left, int64_t width, float* to) {
    const int64_t channels = image_.channels;
    const bool alpha = channels != wanted_ && (channels == 2 || channels == 4);
    const int64_t colours = channels - (alpha ? 1 : 0);
    const bool as_it_is = !alpha && colours == wanted_;
    if (!as_it_is) values_.resize(static_cast<size_t>(width * channels));
    float* v = as_it_is ? to : values_.data();
    levels(y, left * channels, width * channels, v);
    if (alpha) {
      for (int64_t x = 0; x < width; ++x) {
        float* pixel = v + x * channels;
        const float a = pixel[colours] / 255.0f;
        for (int64_t c = 0; c < colours; ++c) pixel[c] = (invert_ ? 255.0f - pixel[c] : pixel[c]) * a;
      }
    } else if (invert_) {
      for (int64_t i = 0; i < width * channels; ++i) v[i] = 255.0f - v[i];
    }
    if (as_it_is) return;
    if (colours == wanted_) {
      for (int64_t x = 0; x < width; ++x)
        for (int64_t c = 0; c < colours; ++c) to[x * colours + c] = v[x * channels + c];
    } else if (wanted_ == 3) {
      for (int64_t x = 0; x < width; ++x) to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = v[x * channels];
    } else {
      for (int64_t x = 0; x < width; ++x) {
        const float* pixel = v + x * channels;
        to[x] = ((kRed * pixel[0] + kGreen * pixel[1]) + kBlue * pixel[2]) / kUnit;
      }
    }
  }

 private:
  // Values [first, first + count) of row `y` as levels from 0 to 255.
  void levels(int64_t y, int64_t first, int64_t count, float* to) const {
    const auto* row = static_cast<const unsigned char*>(image_.pixels) + y * stride_ + first * bytes_of(image_.type);
    switch (image_.type) {
      case CAPSEDGE_UINT8:
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(row[i]);
        break;
      case CAPSEDGE_BOOL:
        for (int64_t i = 0; i < count; ++i) to[i] = row[i] ? 255.0f : 0.0f;
        break;
      case CAPSEDGE_UINT16:
        for (int64_t i = 0; i < count; ++i) {
          uint16_t value;
          std::memcpy(&value, row + 2 * i, 2);  // a stride may put rows at odd addresses
          to[i] = static_cast<float>(value) / 257.0f;
        }
        break;
      default: {
        std::memcpy(to, row, static_cast<size_t>(count) * 4);
        bool inside = true;
        for (int64_t i = 0; i < count; ++i) inside &= to[i] >= 0.0f && to[i] <= 1.0f;
        if (!inside)
          fail_usage(name_ + " has values outside 0 to 1, NaN or infinite.", "Floating-point pixels go from 0 to 1.",
                     "Divide by the largest value, or give uint8.");
        for (int64_t i = 0; i < count; ++i) to[i] *= 255.0f;
      }
    }
  }

  const capsedge_image& image_;
  const int32_t wanted_;
  const bool invert_;
  const std::string& name_;
  const int64_t stride_;
  std::vector<float>& values_;
};

// to[x] = w[0] rows[0][x], then every further product is added.
void add_row(bool first, float weight, const float* row, int64_t count, float* to) {
  if (first) {
    for (int64_t x = 0; x < count; ++x) to[x] = weight * row[x];
  } else {
    for (int64_t x = 0; x < count; ++x) to[x] = to[x] + weight * row[x];
  }
}

}  // namespace

int64_t taps(int64_t source, int64_t target, int64_t index, std::vector<float>& weights) {
  const int64_t centre = (2 * index + 1) * source, half = 2 * std::max(source, target);
  const auto weight = [&](int64_t k) { return half - std::abs((2 * k + 1) * target - centre); };
  // About (2k + 1) target = centre - half; then onto the first that counts.
  int64_t first = std::clamp<int64_t>((centre - half) / (2 * target) - 1, 0, source - 1);
  while (weight(first) <= 0) ++first;
  int64_t sum = 0, last = first;
  for (; last < source && weight(last) > 0; ++last) sum += weight(last);
  weights.clear();
  for (int64_t k = first; k < last; ++k)
    weights.push_back(static_cast<float>(static_cast<double>(weight(k)) / static_cast<double>(sum)));
  return first;
}

Placement place(const Preprocessing& p, int64_t height, int64_t width) {
  const Size whole{height, width}, target{p.height, p.width};
  Placement placed{whole, target, target};
  if (p.resize == Resize::kCrop) {
    placed.part = fit(target, whole);
  } else if (p.resize == Resize::kPad) {
    placed.inner = fit(whole, target);
  } else if (p.resize == Resize::kCenter) {
    placed.inner = {std::min(whole.height, target.height), std::min(whole.width, target.width)};
    placed.part = placed.inner;
  }
  placed.top = (whole.height - placed.part.height) / 2;
  placed.left = (whole.width - placed.part.width) / 2;
  return placed;
}

std::array<int64_t, 3> Preprocessing::shape() const {
  if (channels_last) return {height, width, channels};
  return {channels, height, width};
}

std::string Preprocessing::wrong() const {
  const std::string size = std::to_string(channels) + "x" + std::to_string(height) + "x" + std::to_string(width);
  if (height < 1 || width < 1 || channels < 1) return "the input size " + size + " is not positive";
  if (std::max(height, width) > limits::kImageSide || int64_t{channels} > limits::kInputValues || values() > limits::kInputValues)
    return "the input size " + size + " is over " + std::to_string(limits::kInputValues) + " values or " +
           std::to_string(limits::kImageSide) + " pixels a side";
  bool numbers = std::isfinite(scale);
  for (const double v : mean) numbers = numbers && std::isfinite(v);
  for (const double v : std) numbers = numbers && std::isfinite(v) && v != 0;
  if (!numbers) return "scale, mean and std must be finite numbers, and std not zero";
  for (const auto* list : {&mean, &std})
    if (list->size() != 1 && list->size() != static_cast<size_t>(channels))
      return std::string(list == &mean ? "mean" : "std") + " has " + std::to_string(list->size()) + " values for " +
             std::to_string(channels) + " channels";
  if (resize == Resize::kUnknown) return "the resize rule is none of " + known_words<Resize>();
  if (per_image == PerImage::kUnknown) return "per_image is none of " + known_words<PerImage>();
  if (per_image == PerImage::kStandardize &&
      (std::any_of(mean.begin(), mean.end(), [](double v) { return v != 0; }) ||
       std::any_of(std.begin(), std.end(), [](double v) { return v != 1; })))
    return "an image that is standardized by itself cannot have another mean and std";
  if (bgr && channels != 3) return "only three channels can be blue, green, red";
  return "";
}

namespace {

// Along the height: scratch.tall becomes [inner.height][part.width][channels].
void resize_height(const Placement& placed, int64_t channels, Rows& rows, PrepareScratch& scratch) {
  const Size &part = placed.part, &inner = placed.inner;
  const int64_t row = part.width * channels;
  scratch.tall.resize(static_cast<size_t>(inner.height * row));
  scratch.part.resize(static_cast<size_t>(row));
  for (int64_t i = 0; i < inner.height; ++i) {
    float* line = scratch.tall.data() + i * row;
    if (part.height == inner.height) {
      rows.read(placed.top + i, placed.left, part.width, line);
      continue;
    }
    const int64_t first = taps(part.height, inner.height, i, scratch.weights);
    for (size_t k = 0; k < scratch.weights.size(); ++k) {
      rows.read(placed.top + first + static_cast<int64_t>(k), placed.left, part.width, scratch.part.data());
      add_row(k == 0, scratch.weights[k], scratch.part.data(), row, line);
    }
  }
}

// (v * scale - mean) / std of a channel.
struct Normalization {
  float scale, mean, std;
  float of(float v) const { return (v * scale - mean) / std; }
};

Normalization normalization(const Preprocessing& p, int64_t channel) {
  const auto of = [channel](const std::vector<double>& list) {
    return static_cast<float>(list[list.size() == 1 ? 0 : static_cast<size_t>(channel)]);
  };
  return {static_cast<float>(p.scale), of(p.mean), of(p.std)};
}

// Along the width into [channels, height, width], normalized unless the whole image comes first. What padding leaves is level 0.
void resize_width(const Placement& placed, const Preprocessing& p, PrepareScratch& scratch, float* to) {
  const bool levels = p.per_image == PerImage::kMinMax;
  const Size &part = placed.part, &inner = placed.inner, &target = placed.target;
  const int64_t channels = p.channels, row = part.width * channels;
  const int64_t down = placed.down(), right = placed.right();
  for (int64_t c = 0; c < channels && placed.padded(); ++c)
    std::fill(to + c * target.height * target.width, to + (c + 1) * target.height * target.width,
              levels ? 0.0f : normalization(p, c).of(0.0f));
  for (int64_t j = 0; j < inner.width; ++j) {
    const int64_t first = part.width == inner.width ? j : taps(part.width, inner.width, j, scratch.weights);
    if (part.width == inner.width) scratch.weights.assign(1, 1.0f);
    const float* weights = scratch.weights.data();
    const size_t count = scratch.weights.size();
    for (int64_t c = 0; c < channels; ++c) {
      const Normalization n = normalization(p, c);
      float* column = to + (c * target.height + down) * target.width + right + j;
      for (int64_t i = 0; i < inner.height; ++i) {
        const float* line = scratch.tall.data() + i * row + first * channels + (p.bgr ? channels - 1 - c : c);
        float sum = weights[0] * line[0];
        for (size_t k = 1; k < count; ++k) sum = sum + weights[k] * line[static_cast<int64_t>(k) * channels];
        column[i * target.width] = levels ? sum : n.of(sum);
      }
    }
  }
}

// The image's levels from 0 to 255, then normalized.
void stretch_levels(const Preprocessing& p, float* values) {
  const int64_t area = int64_t{p.height} * p.width;
  const auto [lowest, highest] = std::minmax_element(values, values + p.values());
  const float low = *lowest, span = *highest > low ? *highest - low : 1.0f;
  for (int64_t c = 0; c < p.channels; ++c) {
    const Normalization n = normalization(p, c);
    for (float *v = values + c * area, *const end = v + area; v != end; ++v) *v = n.of((*v - low) / span * 255.0f);
  }
}

// Mean 0 and deviation 1, in doubles and from the first value to the last.
void standardize(float* values, int64_t count) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]);
  const double mean = sum / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double centred = static_cast<double>(values[i]) - mean;
    squares += centred * centred;
  }
  const double deviation = std::max(std::sqrt(squares / static_cast<double>(count)), 1.0 / std::sqrt(static_cast<double>(count)));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((static_cast<double>(values[i]) - mean) / deviation);
}

}  // namespace

void prepare(const Preprocessing& p, const capsedge_image& image, bool invert, const std::string& name,
             PrepareScratch& scratch, float* to) {
  check_image(image, p.channels, name);
  Rows rows(image, p.channels, invert, name, scratch.row);
  const Placement placed = place(p, image.height, image.width);
  const bool permuted = p.channels_last && p.channels > 1;
  if (permuted) scratch.planes.resize(static_cast<size_t>(p.values()));
  float* const planes = permuted ? scratch.planes.data() : to;
  resize_height(placed, p.channels, rows, scratch);
  resize_width(placed, p, scratch, planes);
  if (p.per_image == PerImage::kMinMax) stretch_levels(p, planes);
  if (p.per_image == PerImage::kStandardize) standardize(planes, p.values());
  const int64_t area = int64_t{p.height} * p.width;
  for (int64_t i = 0; permuted && i < area; ++i)
    for (int64_t c = 0; c < p.channels; ++c) to[i * p.channels + c] = planes[c * area + i];
}

}  // namespace capsedge::libcapsedge
