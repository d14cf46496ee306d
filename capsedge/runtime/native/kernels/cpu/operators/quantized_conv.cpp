#include <algorithm>
#include <cstring>
#include <limits>

#include "generated/limits.h"
#include "operator.h"
#include "support/plan.h"
#include "support/transpose.h"

namespace capsedge {

namespace {

using namespace places::QuantizedConv;

// Limit on the elements of an image and on attributes, because positions are stored in 32 bits.
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
// Least number of bytes that justifies a task.
constexpr int64_t kSmallest = 8 * 1024;
// Number of tasks that threads share evenly, even if one thread starts late.
constexpr int64_t kTasks = 8;
// Positions per task; bytes of weights per sweep over them, which stay in the second-level cache.
constexpr int64_t kPositions = 96;
constexpr int64_t kSweep = 160 * 1024;
// Bytes that a kernel may read beyond the weights.
constexpr int64_t kBehind = 4096;

// A layer as the kernels see it. A window is divided into segments, the parts that are contiguous in memory when the
// channels are last: its rows, or its single positions if it is dilated.
struct Plan {
  int64_t channels, kernel_height, kernel_width;
  int64_t height, width;  // of the padded image
  int64_t segments, length, padded;  // length of a segment, and the same padded with zeros to a multiple of dot
  int64_t groups, group_bytes, sweep;  // groups of channels; segments of a sweep
  Grid grid;
  std::vector<int32_t> offsets;

  int64_t image_elements() const { return height * width * channels; }
};

// For each channel, padded with zeros to whole groups: the start value of its sums, and their factor.
struct Scaling {
  std::vector<int32_t> start;
  std::vector<float> factors;
};

struct Packed {
  Buffer bytes;               // [group][segment][padded / dot][channels of a group][dot]
  std::vector<int32_t> sums;  // of each channel
};

int64_t floats_for(int64_t bytes) { return (bytes + 3) / 4; }

// Type of an image's elements as the kernels read it.
int64_t element_bytes(const ConvKernels& kernels) { return kernels.dot == 4 ? 1 : 2; }

// The type for a letter of the operators' table that stands for a single type.
Type type_of(char letter) {
  switch (letter) {
    case 'i': return Type::kInt32;
    case 'b': return Type::kInt8;
    case 'B': return Type::kUint8;
    default: return Type::kFloat;
  }
}

template <typename T>
T scalar(const Tensor& tensor) {
  T value;
  std::memcpy(&value, tensor.data, sizeof value);
  return value;
}

class QuantizedConv : public Operator {
 public:
  QuantizedConv(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        strides_(attributes.integers("strides")),
        dilations_(attributes.integers("dilations", kMost)),
        pads_(attributes.integers("pads", kMost)) {}

  void check(const std::vector<Shape>& in) const override {
    const Shape& weight = in[kWeight];
    expect(elements({weight[1], weight[2], weight[3]}) <= limits::kConvolutionProducts, name(), "input 'weight' has shape ", weight,
           ": a sum of more than ", limits::kConvolutionProducts, " products may not fit 32 bits");
    plan(in[kX], weight);
  }

  void keep(size_t index, const Tensor& tensor) override {
    const Shape& shape = tensor.shape;
    if (index != kWeight) return;
    if (elements(shape) == 0 || elements({shape[1], shape[2], shape[3]}) > limits::kConvolutionProducts) return;  // outputs() says what is wrong
    expect_type(name(), "weight", tensor, Type::kInt8);
    packed_ = pack(tensor, nullptr);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override;

 private:
  Plan plan(const Shape& x, const Shape& weight) const;
  Packed pack(const Tensor& weight, const Threads* threads) const;
  void check_types(const std::vector<Tensor>& in) const;
  Scaling scaling(const Plan& p, const std::vector<Tensor>& in, const std::vector<int32_t>& weight_sums) const;
  Buffer padded_input(const Plan& p, const Tensor& x, uint8_t zero, const Threads& threads) const;
  template <typename T>
  void channels_last(const Plan& p, const Tensor& x, T zero, T* to, const Threads& threads) const;
  std::vector<int32_t> windows(const Plan& p) const;

  const Shape strides_;
  const Shape dilations_;
  const Shape pads_;
  std::optional<Packed> packed_;
};

Plan QuantizedConv::plan(const Shape& x, const Shape& weight) const {
  const ConvKernels& kernels = level_.conv;
  Plan p{};
  p.channels = weight[1];
  p.kernel_height = weight[2];
  p.kernel_width = weight[3];
  p.height = x[2] + pads_[0] + pads_[2];
  p.width = x[3] + pads_[1] + pads_[3];
  p.grid = output_grid(name(), {0, p.height, p.width}, dilations_[0] * (weight[2] - 1) + 1,
                       dilations_[1] * (weight[3] - 1) + 1, strides_);
  expect(p.width <= kMost / p.channels / p.height, name(), "input 'x' of shape ", x,
         " is too large: at most 2^31 elements with its padding");
  const bool whole_rows = dilations_[1] == 1;
  p.segments = weight[2] * (whole_rows ? 1 : weight[3]);
  p.length = weight[1] * (whole_rows ? weight[3] : 1);
  p.padded = round_up(p.length, kernels.dot);
  p.groups = (weight[0] + kernels.channels - 1) / kernels.channels;
  p.group_bytes = p.segments * p.padded * kernels.channels;
  p.sweep = std::clamp<int64_t>(kSweep / (p.padded * kernels.channels), 1, p.segments);
  p.offsets.reserve(static_cast<size_t>(p.segments));
  for (int64_t row = 0; row < weight[2]; ++row)
    for (int64_t column = 0; column < (whole_rows ? 1 : weight[3]); ++column)
      p.offsets.push_back(
          static_cast<int32_t>((row * dilations_[0] * p.width + column * dilations_[1]) * p.channels));
  return p;
}

Packed QuantizedConv::pack(const Tensor& weight, const Threads* threads) const {
  const Shape& shape = weight.shape;
  const ConvKernels& kernels = level_.conv;
  const Plan p = plan({0, shape[1], dilations_[0] * shape[2], dilations_[1] * shape[3]}, shape);
  const int64_t size = p.groups * p.group_bytes;
  Packed packed{Buffer(floats_for(size + kBehind)), std::vector<int32_t>(static_cast<size_t>(shape[0]))};
  std::memset(reinterpret_cast<int8_t*>(packed.bytes.data()) + size, 0, kBehind);
  const auto* from = static_cast<const int8_t*>(weight.data);
  const int64_t places = shape[2] * shape[3];
  parallel_for(threads, p.groups, [&](int64_t group) {
    int8_t* to = reinterpret_cast<int8_t*>(packed.bytes.data()) + group * p.group_bytes;
    std::memset(to, 0, static_cast<size_t>(p.group_bytes));
    const int64_t first = group * kernels.channels, count = std::min<int64_t>(kernels.channels, shape[0] - first);
    for (int64_t m = 0; m < count; ++m) {
      int32_t sum = 0;
      // Segments are whole rows or single positions; either way, the positions are consecutive.
      int64_t step = 0, k = 0, lane = 0;
      for (int64_t place = 0; place < places; ++place)
        for (int64_t c = 0; c < p.channels; ++c) {
          const int8_t value = from[((first + m) * p.channels + c) * places + place];
          to[(step * kernels.channels + m) * kernels.dot + lane] = value;
          sum += value;
          if (++lane == kernels.dot) lane = 0, ++step;
          if (++k < p.length) continue;
          if (lane > 0) lane = 0, ++step;
          k = 0;
        }
      packed.sums[static_cast<size_t>(first + m)] = sum;
    }
  });
  return packed;
}

// The padded images with the channels last, [N][height][width][C].
template <typename T>
void QuantizedConv::channels_last(const Plan& p, const Tensor& x, T zero, T* to, const Threads& threads) const {
  const int64_t images = x.shape[0], height = x.shape[2], width = x.shape[3];
  const int64_t left = pads_[1], right = pads_[3];
  // Without padding at the sides, an image is one line, which is divided into whole blocks for several threads.
  const bool one_line = left + right == 0;
  const int64_t line = one_line ? height * width : width, lines = one_line ? 1 : height;
  const int64_t part = std::max<int64_t>(64, kSmallest / p.channels), parts = (line + part - 1) / part;
  parallel_for(threads, images * lines * parts, [&](int64_t task) {
    const int64_t image = task / (lines * parts), at_line = task / parts % lines, first = task % parts * part;
    const int64_t count = std::min(part, line - first);
    const auto* from = static_cast<const uint8_t*>(x.data) + (image * p.channels * lines + at_line) * line + first;
    const int64_t row = image * p.height + pads_[0] + (one_line ? 0 : at_line);
    T* target = to + (row * p.width + left + first) * p.channels;
    if constexpr (sizeof(T) == 1) {
      transpose_bytes(from, lines * line, p.channels, count, target, p.channels);
    } else {
      auto* bytes = reinterpret_cast<uint8_t*>(thread_scratch(floats_for(count * p.channels)));
      transpose_bytes(from, lines * line, p.channels, count, bytes, p.channels);
      std::copy(bytes, bytes + count * p.channels, target);
    }
    if (first == 0) std::fill(target - left * p.channels, target, zero);
    if (first + count == line) std::fill_n(target + count * p.channels, right * p.channels, zero);
  });
  for (int64_t image = 0; image < images; ++image) {
    T* start = to + image * p.height * p.width * p.channels;
    std::fill_n(start, pads_[0] * p.width * p.channels, zero);
    std::fill_n(start + (pads_[0] + height) * p.width * p.channels, pads_[2] * p.width * p.channels, zero);
  }
}

void QuantizedConv::check_types(const std::vector<Tensor>& in) const {
  for (size_t i = 0; i < in.size(); ++i) expect_type(name(), spec_.inputs[i].name, in[i], type_of(spec_.inputs[i].type));
  const auto* weight_zero = static_cast<const int8_t*>(in[kWeightZeroPoint].data);
  expect(std::all_of(weight_zero, weight_zero + in[kWeight].shape[0], [](int8_t z) { return z == 0; }), name(),
         "input 'weight_zero_point' is not zero: weights are symmetric");
}

// Σ (x - zero) w + bias = Σ x w + (bias - zero Σ w); in unsigned numbers, which wrap.
Scaling QuantizedConv::scaling(const Plan& p, const std::vector<Tensor>& in,
                               const std::vector<int32_t>& weight_sums) const {
  const uint8_t x_zero = scalar<uint8_t>(in[kXZeroPoint]);
  const float x_scale = scalar<float>(in[kXScale]), y_scale = scalar<float>(in[kYScale]);
  const auto* bias = static_cast<const int32_t*>(in[kBias].data);
  const auto* weight_scale = static_cast<const float*>(in[kWeightScale].data);
  const auto lanes = static_cast<size_t>(p.groups * level_.conv.channels);
  Scaling made{std::vector<int32_t>(lanes, 0), std::vector<float>(lanes, 0.0f)};
  for (size_t m = 0; m < weight_sums.size(); ++m) {
    made.start[m] = static_cast<int32_t>(static_cast<uint32_t>(bias[m]) -
                                         static_cast<uint32_t>(x_zero) * static_cast<uint32_t>(weight_sums[m]));
    made.factors[m] = x_scale * weight_scale[m] / y_scale;
  }
  return made;
}

// The padded images in the element type of the kernels.
Buffer QuantizedConv::padded_input(const Plan& p, const Tensor& x, uint8_t zero, const Threads& threads) const {
  // The last segment may be read up to its padded length. Padding can make a small tensor large.
  int64_t count = 0;
  expect(!__builtin_mul_overflow(x.shape[0], p.image_elements(), &count) && count <= INT64_MAX / 4, name(),
         "input 'x' of shape ", x.shape, " is too large with its padding");
  Buffer input(floats_for((count + level_.conv.dot) * element_bytes(level_.conv)));
  if (element_bytes(level_.conv) == 1) {
    channels_last(p, x, zero, reinterpret_cast<uint8_t*>(input.data()), threads);
  } else {
    channels_last(p, x, static_cast<int16_t>(zero), reinterpret_cast<int16_t*>(input.data()), threads);
  }
  return input;
}

// Start of each output position's window in its image.
std::vector<int32_t> QuantizedConv::windows(const Plan& p) const {
  std::vector<int32_t> starts(static_cast<size_t>(p.grid.height * p.grid.width));
  int32_t* next = starts.data();
  for (int64_t row = 0; row < p.grid.height; ++row)
    for (int64_t column = 0; column < p.grid.width; ++column)
      *next++ = static_cast<int32_t>((row * strides_[0] * p.width + column * strides_[1]) * p.channels);
  return starts;
}

void QuantizedConv::run(const std::vector<Tensor>& in, const std::vector<Output>& results,
                        const Threads& threads) const {
  check_types(in);
  const int64_t images = in[kX].shape[0], outputs = in[kWeight].shape[0];
  if (images == 0) return;
  const ConvKernels& kernels = level_.conv;
  const Plan p = plan(in[kX].shape, in[kWeight].shape);
  std::optional<Packed> own;
  const Packed& packed = made_once(packed_, own, [&] { return pack(in[kWeight], &threads); });
  const Scaling channels = scaling(p, in, packed.sums);
  const Buffer input = padded_input(p, in[kX], scalar<uint8_t>(in[kXZeroPoint]), threads);
  const std::vector<int32_t> starts = windows(p);

  // Blocks of whole tiles, so that only the last one has a remainder.
  const int64_t positions = p.grid.height * p.grid.width;
  const int64_t tiles = (positions + kernels.positions - 1) / kernels.positions;
  const int64_t enough = (kTasks + p.groups * images - 1) / (p.groups * images);
  const int64_t blocks = std::clamp<int64_t>((positions + kPositions - 1) / kPositions, std::min(enough, tiles), tiles);
  const int64_t image_bytes = p.image_elements() * element_bytes(kernels), step_bytes = p.padded * kernels.channels;
  const uint8_t y_zero = scalar<uint8_t>(in[kYZeroPoint]);
  auto* y = static_cast<uint8_t*>(results[0].data);
  // Neighbouring tasks share weights.
  parallel_for(threads, p.groups * images * blocks, [&](int64_t task) {
    const int64_t group = task / (images * blocks), image = task / blocks % images, block = task % blocks;
    const int64_t first = tiles * block / blocks * kernels.positions;
    const int64_t count = std::min(tiles * (block + 1) / blocks * kernels.positions, positions) - first;
    const int64_t cells = count * kernels.channels, channel = group * kernels.channels;
    float* scratch = thread_scratch(cells + floats_for(cells));
    auto* sums = reinterpret_cast<int32_t*>(scratch);
    auto* bytes = reinterpret_cast<uint8_t*>(scratch + cells);
    const auto* weight = reinterpret_cast<const int8_t*>(packed.bytes.data()) + group * p.group_bytes;
    ConvPass pass{};
    pass.input = reinterpret_cast<const char*>(input.data()) + image * image_bytes;
    pass.windows = starts.data() + first;
    pass.positions = static_cast<int>(count);
    pass.length = static_cast<int>(p.padded);
    pass.sums = sums;
    for (int64_t segment = 0; segment < p.segments; segment += p.sweep) {
      pass.start = segment == 0 ? channels.start.data() + channel : nullptr;
      pass.offsets = p.offsets.data() + segment;
      pass.segments = static_cast<int>(std::min(p.sweep, p.segments - segment));
      pass.weight = weight + segment * step_bytes;
      pass.ahead = pass.weight + pass.segments * step_bytes;
      kernels.convolve(pass);
    }
    kernels.requantize(sums, channels.factors.data() + channel, y_zero, static_cast<int>(count), bytes);
    transpose_bytes(bytes, kernels.channels, count, std::min<int64_t>(kernels.channels, outputs - channel),
                    y + (image * outputs + channel) * positions + first, positions);
  });
}

}  // namespace

std::unique_ptr<Operator> make_quantized_conv(const Attributes& attributes, const Level& level) {
  return std::make_unique<QuantizedConv>(attributes, level);
}

}  // namespace capsedge
