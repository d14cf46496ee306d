#include <algorithm>
#include <array>
#include <mutex>

#include "operator.h"
#include "simd/cook_toom.h"
#include "support/plan.h"

namespace capsedge {

namespace {

using namespace places::FastConv;

// Tiles that read the weights together; strips whose products share a reading of the inputs; tasks that threads share
// evenly; floats of transformed inputs that exist at a time.
constexpr int64_t kTiles = 48;
constexpr int64_t kStrips = 8;
constexpr int64_t kTasks = 8;
constexpr int64_t kTransformed = 4 << 20;
// Most of them in one block, unless it is a single tile.
constexpr int64_t kMostOfBlock = 32 << 20;
// Floats between the positions of a block beyond its own, so that they do not all fall into the same cache sets.
constexpr int64_t kApart = 16;
constexpr int64_t kMostStride = 2;
constexpr int64_t kMostWeights = int64_t{1} << 31;
// Products that take as long as reading a weight from a cache, or from memory. Up to this many bytes of them are assumed
// to stay in a cache: a constant, so that results do not depend on the machine.
constexpr int64_t kCached = 4, kUncached = 12;
constexpr double kCache = 16 << 20;

// The taps of one axis that a piece has: every stride-th from the first on.
struct Cut {
  int64_t first, taps;
};
std::vector<Cut> cuts(int64_t window, int64_t stride) {
  std::vector<Cut> made;
  for (int64_t phase = 0; phase < std::min(stride, window); ++phase) {
    const int64_t taps = (window - phase + stride - 1) / stride, parts = (taps + kMostTaps - 1) / kMostTaps;
    for (int64_t k = 0; k < parts; ++k) {
      const int64_t from = taps * k / parts;
      made.push_back({phase + from * stride, taps * (k + 1) / parts - from});
    }
  }
  return made;
}

// A window in pieces, and the positions at which the products of all of them are taken.
struct Pieces {
  Pieces(const Shape& weight, const Shape& strides, int64_t tile)
      : rows(cuts(weight[2], strides[0])), columns(cuts(weight[3], strides[1])) {
    for (const Cut& row : rows)
      for (const Cut& column : columns) positions += (row.taps + tile - 1) * (column.taps + tile - 1);
  }
  std::vector<Cut> rows, columns;
  int64_t positions = 0;
};

// The tile that takes the fewest products, counting the readings of the transformed weights, which grow with it.
int64_t best_tile(const Shape& weight, const Shape& strides, const Shape& y) {
  int64_t best = 1;
  double least = 0;
  for (int64_t tile = 1; tile <= kMostTile; ++tile) {
    const auto positions = static_cast<double>(Pieces(weight, strides, tile).positions);
    const double bytes = positions * static_cast<double>(weight[0] * weight[1]) * sizeof(float);
    const int64_t tiles = y[0] * ((y[2] + tile - 1) / tile) * ((y[3] + tile - 1) / tile);
    const int64_t blocks = (tiles + kTiles - 1) / kTiles;
    const int64_t reading = bytes <= kCache ? kCached : kUncached;
    const double cost = positions * static_cast<double>(tiles + blocks * reading);
    if (tile == 1 || cost < least) best = tile, least = cost;
  }
  return best;
}

// How a run is divided. A unit is some neighbouring tiles of one line of tiles; units that read the weights together
// are a block.
struct Division {
  int64_t tile;
  int64_t lines, segments, tiles;  // of an image; of a line; of a unit
  int64_t units, block, blocks;    // of the batch; units of a block; of the batch
  int64_t height, width;           // of the inputs that a unit reads
};

class FastConv : public Operator {
 public:
  FastConv(const Attributes& attributes, const Level& level)
      : Operator(attributes, level), strides_(attributes.integers("strides")), pads_(attributes.integers("pads")) {}

  void check(const std::vector<Shape>& in) const override {
    expect(std::max(strides_[0], strides_[1]) <= kMostStride, name(), "attribute 'strides' is ", strides_, ": at most ",
           kMostStride);
    const Shape& window = in[kWeight];
    for (size_t k = 0; k < 4; ++k)
      expect(pads_[k] < window[2 + k % 2], name(), "attribute 'pads' is ", pads_, " with windows of shape ", window,
             ": wanted less than a window");
    const int64_t outputs = round_up(window[0], level_.filter.lanes);
    expect(elements({outputs, window[1], Pieces(window, strides_, kMostTile).positions}) <= kMostWeights, name(),
           "input 'weight' of shape ", window, " is too large: at most 2^31 elements when transformed");
  }

  void keep(size_t index, const Tensor& tensor) override {
    if (index != kWeight) return;
    check_type(tensor);
    constant_ = true;
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override;

 private:
  struct Run;

  void check_type(const Tensor& weight) const {
    expect(weight.type == Type::kFloat || weight.type == Type::kFloat16, name(),
           "input 'weight' is neither float nor float16");
  }

  const Buffer& packed(const Tensor& weight, int64_t tile, const Threads& threads, std::optional<Buffer>& own) const;
  Buffer pack(const Tensor& weight, int64_t tile, const Threads& threads) const;
  void pack_channel(const Pieces& pieces, int64_t tile, const float* taps, int64_t stride, int64_t count,
                    int64_t columns, float* to, int64_t step) const;
  Division divide(const Shape& weight, const Shape& y, int64_t tile, int64_t positions) const;
  void transform(const Run& r, int64_t block, int64_t channel) const;
  void compute(const Run& r, int64_t block, int64_t strip, int64_t count) const;
  void read_lines(const Shape& shape, const float* x, const Division& d, int64_t unit, int64_t channel,
                  float* to) const;
  void write_tile(const Shape& shape, const float* sums, const Division& d, int64_t unit, int64_t at, int64_t channel,
                  float* y) const;

  const Shape strides_, pads_;
  bool constant_ = false;  // the weight
  mutable std::mutex packing_;
  mutable std::array<std::optional<Buffer>, kMostTile> packed_;  // by tile
};

// Weights are packed for a tile when it is first used: it depends on the images.
const Buffer& FastConv::packed(const Tensor& weight, int64_t tile, const Threads& threads,
                               std::optional<Buffer>& own) const {
  check_type(weight);
  if (!constant_) return own.emplace(pack(weight, tile, threads));
  const std::lock_guard<std::mutex> lock(packing_);
  std::optional<Buffer>& kept = packed_[static_cast<size_t>(tile - 1)];
  return kept ? *kept : kept.emplace(pack(weight, tile, threads));
}

// Transformed weights, [strip][position][channel of the input][lanes].
Buffer FastConv::pack(const Tensor& tensor, int64_t tile, const Threads& threads) const {
  const Shape& shape = tensor.shape;
  const int64_t lanes = level_.filter.lanes, channels = shape[1], window = shape[2] * shape[3];
  const Pieces pieces(shape, strides_, tile);
  const int64_t strips = (shape[0] + lanes - 1) / lanes;
  const Floats weight(tensor, level_);
  Buffer packed(strips * pieces.positions * channels * lanes);
  parallel_for(threads, strips, [&](int64_t strip) {
    const int64_t count = std::min(lanes, shape[0] - strip * lanes);
    for (int64_t c = 0; c < channels; ++c)
      pack_channel(pieces, tile, weight.data() + (strip * lanes * channels + c) * window, channels * window, count,
                   shape[3], packed.data() + (strip * pieces.positions * channels + c) * lanes, channels * lanes);
  });
  return packed;
}

// G g Gᵀ of every piece, for one channel of the input and `count` of the output, whose taps are `stride` floats apart;
// positions are `step` floats apart.
void FastConv::pack_channel(const Pieces& pieces, int64_t tile, const float* taps, int64_t stride, int64_t count,
                            int64_t columns, float* to, int64_t step) const {
  static constexpr std::array<std::array<CookToom, kMostTaps>, kMostTile> kMatrices = [] {
    std::array<std::array<CookToom, kMostTaps>, kMostTile> made{};
    for (int m = 0; m < kMostTile; ++m)
      for (int r = 0; r < kMostTaps; ++r) made[m][r] = cook_toom(m + 1, r + 1);
    return made;
  }();
  const int64_t lanes = level_.filter.lanes;  // at most 32
  double piece[kMostTaps * kMostTaps * 32] = {}, half[kMostTaps * 32], sum[32];
  const auto& matrices = kMatrices[static_cast<size_t>(tile - 1)];
  for (const Cut& row : pieces.rows)
    for (const Cut& column : pieces.columns) {
      const auto& down = matrices[static_cast<size_t>(row.taps - 1)].g;
      const auto& across = matrices[static_cast<size_t>(column.taps - 1)].g;
      for (int64_t a = 0; a < row.taps; ++a)
        for (int64_t b = 0; b < column.taps; ++b) {
          const float* tap = taps + (row.first + a * strides_[0]) * columns + column.first + b * strides_[1];
          for (int64_t l = 0; l < count; ++l) piece[(a * kMostTaps + b) * lanes + l] = tap[l * stride];
        }
      for (int64_t i = 0; i < row.taps + tile - 1; ++i) {
        std::fill_n(half, column.taps * lanes, 0.0);
        for (int64_t a = 0; a < row.taps; ++a)
          for (int64_t b = 0; b < column.taps; ++b) {
            const double* tap = piece + (a * kMostTaps + b) * lanes;
            for (int64_t l = 0; l < lanes; ++l) half[b * lanes + l] += down[i][a] * tap[l];
          }
        for (int64_t j = 0; j < column.taps + tile - 1; ++j, to += step) {
          std::fill_n(sum, lanes, 0.0);
          for (int64_t b = 0; b < column.taps; ++b)
            for (int64_t l = 0; l < lanes; ++l) sum[l] += across[j][b] * half[b * lanes + l];
          for (int64_t l = 0; l < lanes; ++l) to[l] = static_cast<float>(sum[l]);
        }
      }
    }
}

Division FastConv::divide(const Shape& weight, const Shape& y, int64_t tile, int64_t positions) const {
  Division d{};
  d.tile = tile;
  const int64_t line = (y[3] + tile - 1) / tile;
  const int64_t most = std::clamp<int64_t>(kMostOfBlock / (positions * round_up(weight[1], level_.width)), 1, kTiles);
  d.lines = (y[2] + tile - 1) / tile;
  d.segments = (line + most - 1) / most;
  d.tiles = (line + d.segments - 1) / d.segments;
  d.units = y[0] * d.lines * d.segments;
  d.block = std::max<int64_t>(1, most / d.tiles);
  d.blocks = (d.units + d.block - 1) / d.block;
  d.height = (tile - 1) * strides_[0] + weight[2];
  d.width = (d.tiles * tile - 1) * strides_[1] + weight[3];
  return d;
}

// The inputs that a unit reads, [height][width][lanes]; zeros beyond the image and its channels.
void FastConv::read_lines(const Shape& shape, const float* x, const Division& d, int64_t unit, int64_t channel,
                          float* to) const {
  const int64_t lanes = level_.width, image = unit / (d.lines * d.segments);
  const int64_t top = unit / d.segments % d.lines * d.tile * strides_[0] - pads_[0];
  const int64_t left = unit % d.segments * d.tiles * d.tile * strides_[1] - pads_[1];
  const int64_t begin = std::clamp<int64_t>(-left, 0, d.width);
  const int64_t end = std::clamp<int64_t>(shape[3] - left, begin, d.width);
  const int64_t count = std::min(lanes, shape[1] - channel);
  if (count < lanes || begin > 0 || end < d.width || top < 0 || top + d.height > shape[2])
    std::fill_n(to, d.height * d.width * lanes, 0.0f);
  const int64_t last = std::min(d.height, shape[2] - top);
  for (int64_t row = std::max<int64_t>(0, -top); row < last; ++row)
    for (int64_t l = 0; l < count; ++l) {
      const float* from = x + ((image * shape[1] + channel + l) * shape[2] + top + row) * shape[3] + left;
      float* at = to + row * d.width * lanes + l;
      for (int64_t column = begin; column < end; ++column) at[column * lanes] = from[column];
    }
}

// Writes the outputs of one strip and tile that are on the map.
void FastConv::write_tile(const Shape& shape, const float* sums, const Division& d, int64_t unit, int64_t at,
                          int64_t channel, float* y) const {
  const int64_t lanes = level_.filter.lanes, image = unit / (d.lines * d.segments);
  const int64_t row = unit / d.segments % d.lines * d.tile, column = (unit % d.segments * d.tiles + at) * d.tile;
  const int64_t rows = std::min(d.tile, shape[2] - row), columns = std::min(d.tile, shape[3] - column);
  const int64_t count = std::min(lanes, shape[1] - channel);
  for (int64_t l = 0; l < count; ++l) {
    float* to = y + ((image * shape[1] + channel + l) * shape[2] + row) * shape[3] + column;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) to[i * shape[3] + j] = sums[(i * d.tile + j) * lanes + l];
  }
}

// What the tasks of a run share.
struct FastConv::Run {
  const Division d;
  const Shape &x_shape, &y_shape;
  const float *x, *weight, *bias;    // bias: of whole strips
  float *y, *transformed = nullptr;  // transformed inputs, [block of the wave][position][tile][channel]
  FilterPass pass{};
  std::vector<FilterPiece> pieces{};
  int64_t positions = 0, most = 0;   // of all pieces; of the largest
  int64_t channels = 0, stride = 0, position = 0;  // of the inputs; floats between tiles, and between positions
  int64_t first = 0;                 // block of the wave

  int64_t begin(int64_t block) const { return (first + block) * d.block; }
  int64_t end(int64_t block) const { return std::min(begin(block) + d.block, d.units); }
  const float* weight_of(int64_t strip, int64_t at, int64_t lanes) const {
    return weight + (strip * positions + at) * channels * lanes;
  }
};

// Transforms a vector of channels of one block.
void FastConv::transform(const Run& r, int64_t block, int64_t channel) const {
  float* lines = thread_scratch(r.d.height * r.d.width * level_.width);
  float* to = r.transformed + block * r.positions * r.position + channel;
  for (int64_t unit = r.begin(block); unit < r.end(block); ++unit, to += r.d.tiles * r.stride) {
    read_lines(r.x_shape, r.x, r.d, unit, channel, lines);
    level_.filter.input(r.pass, lines, static_cast<int>(r.d.tiles), to);
  }
}

// The outputs of some strips in one block, piece by piece, so that products stay in the second-level cache.
void FastConv::compute(const Run& r, int64_t block, int64_t strip, int64_t count) const {
  const int64_t lanes = level_.filter.lanes, tile = r.d.tile, area = tile * tile * lanes;
  const int64_t tiles = (r.end(block) - r.begin(block)) * r.d.tiles, plane = tiles * lanes;
  float* products = thread_scratch(count * (r.most * plane + tiles * area));
  float* sums = products + count * r.most * plane;
  for (int64_t s = 0; s < count; ++s)
    for (int64_t k = 0; k < tiles * tile * tile; ++k)
      std::copy_n(r.bias + (strip + s) * lanes, lanes, sums + s * tiles * area + k * lanes);
  for (const FilterPiece& piece : r.pieces) {
    FilterPass out = r.pass;
    out.pieces = &piece;
    out.position_stride = plane;
    const int64_t positions = (piece.rows + tile - 1) * (piece.columns + tile - 1);
    for (int64_t p = 0; p < positions; ++p) {
      const int64_t at = piece.first + p;
      const float* input = r.transformed + (block * r.positions + at) * r.position;
      for (int64_t s = 0; s < count; ++s) {
        const float* next = s + 1 < count ? r.weight_of(strip + s + 1, at, lanes) : r.weight_of(strip, at + 1, lanes);
        level_.filter.products(input, r.stride, static_cast<int>(tiles), r.weight_of(strip + s, at, lanes), r.channels,
                               next, products + (s * r.most + p) * plane);
      }
    }
    for (int64_t s = 0; s < count; ++s)
      level_.filter.output(out, products + s * r.most * plane, static_cast<int>(tiles), sums + s * tiles * area);
  }
  for (int64_t s = 0; s < count; ++s)
    for (int64_t t = 0; t < tiles; ++t)
      write_tile(r.y_shape, sums + s * tiles * area + t * area, r.d, r.begin(block) + t / r.d.tiles, t % r.d.tiles,
                 (strip + s) * lanes, r.y);
}

void FastConv::run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const {
  const Shape &shape = in[kWeight].shape, &y_shape = results[0].shape;
  if (elements(y_shape) == 0) return;
  const int64_t lanes = level_.filter.lanes, width = level_.width, tile = best_tile(shape, strides_, y_shape);
  const int64_t vectors = (shape[1] + width - 1) / width, strips = (shape[0] + lanes - 1) / lanes;
  std::optional<Buffer> own;
  const Buffer& weight = packed(in[kWeight], tile, threads, own);
  const Floats x(in[kX], level_);
  Buffer bias(strips * lanes);
  std::fill_n(bias.data(), strips * lanes, 0.0f);
  if (in.size() > kBias) std::copy_n(Floats(in[kBias], level_).data(), shape[0], bias.data());
  FloatOutput y(results[0], level_);

  const Pieces pieces(shape, strides_, tile);
  Run r{divide(shape, y_shape, tile, pieces.positions),
        in[kX].shape, y_shape, x.data(), weight.data(), bias.data(), y.data()};
  const Division& d = r.d;
  r.positions = pieces.positions, r.channels = shape[1], r.stride = vectors * width;
  r.position = d.block * d.tiles * r.stride + kApart;
  int64_t first = 0;
  for (const Cut& row : pieces.rows)
    for (const Cut& column : pieces.columns) {
      r.pieces.push_back({static_cast<int>(row.taps), static_cast<int>(column.taps),
                          (row.first * d.width + column.first) * width, first});
      const int64_t positions = (row.taps + tile - 1) * (column.taps + tile - 1);
      first += positions, r.most = std::max(r.most, positions);
    }
  r.pass = {static_cast<int>(tile), r.pieces.data(), static_cast<int>(r.pieces.size()), strides_[0] * d.width * width,
            strides_[1] * width, tile * strides_[1] * width, r.stride, r.position};
  const int64_t wave = std::clamp<int64_t>(kTransformed / (r.positions * r.position), 1, d.blocks);
  const int64_t groups = std::clamp<int64_t>(kTasks / d.blocks, (strips + kStrips - 1) / kStrips, strips);
  Buffer transformed(wave * r.positions * r.position);
  r.transformed = transformed.data();
  for (; r.first < d.blocks; r.first += wave) {
    const int64_t blocks = std::min(wave, d.blocks - r.first);
    parallel_for(threads, blocks * vectors,
                 [&](int64_t task) { transform(r, task / vectors, task % vectors * width); });
    parallel_for(threads, groups * blocks, [&](int64_t task) {
      const int64_t group = task / blocks, strip = group * strips / groups;
      compute(r, task % blocks, strip, (group + 1) * strips / groups - strip);
    });
  }
  y.store();
}

}  // namespace

std::unique_ptr<Operator> make_fast_conv(const Attributes& attributes, const Level& level) {
  return std::make_unique<FastConv>(attributes, level);
}

}  // namespace capsedge
