#include <algorithm>

#include "operator.h"
#include "simd/dispatch.h"
#include "support/plan.h"

namespace capsedge {

namespace {

using namespace places::EMRouting;

// Children per part of a pass. More than elsewhere, because every part begins with the slower kind of block.
constexpr int kEmChunk = 2 * kChunk;

// Up to this size, at which they stay in a core's second-level cache, votes of one position are kept between passes.
// Recomputing them would read as much, since the weights are as large.
constexpr int64_t kKeptVotes = 192 * 1024;  // floats

// The statistics of one position over some number of lanes, in one piece of memory.
struct Statistics {
  Moments moments, part;
  float *mean, *precision, *offset, *activation;

  static int64_t moments_floats(int64_t elements, int64_t lanes) { return lanes * (1 + 2 * elements); }
  static int64_t floats(int64_t elements, int64_t lanes) {
    return 2 * moments_floats(elements, lanes) + lanes * (2 + 2 * elements);
  }
  static Moments moments_at(int64_t elements, int64_t lanes, float* at) {
    return {at, at + lanes, at + lanes + elements * lanes};
  }
  Statistics(int64_t elements, int64_t lanes, float* at)
      : moments(moments_at(elements, lanes, at)),
        part(moments_at(elements, lanes, at + moments_floats(elements, lanes))) {
    mean = at + 2 * moments_floats(elements, lanes);
    precision = mean + elements * lanes;
    offset = precision + elements * lanes;
    activation = offset + lanes;
  }
};

// The coordinates added to votes: only those elements of the pose that are not zero everywhere.
struct Coordinates {
  std::vector<int32_t> elements;
  std::vector<float> values;  // [row][column][elements]

  Coordinates() = default;
  // [H, W, P]
  Coordinates(const Tensor& tensor, const Level& level) {
    const Floats all(tensor, level);
    const int64_t size = tensor.shape[2], cells = tensor.shape[0] * tensor.shape[1];
    for (int64_t h = 0; h < size; ++h)
      for (int64_t cell = 0; cell < cells; ++cell)
        if (all.data()[cell * size + h] != 0) {
          elements.push_back(static_cast<int32_t>(h));
          break;
        }
    for (int64_t cell = 0; cell < cells; ++cell)
      for (const int32_t h : elements) values.push_back(all.data()[cell * size + h]);
  }
  // The paper's coordinates, in the last column of the first two rows.
  Coordinates(const Grid& grid, int32_t side) : elements{side - 1, 2 * side - 1} {
    const float row_scale = 1.0f / static_cast<float>(grid.height), column_scale = 1.0f / static_cast<float>(grid.width);
    for (int64_t row = 0; row < grid.height; ++row)
      for (int64_t column = 0; column < grid.width; ++column) {
        values.push_back((static_cast<float>(row) + 0.5f) * row_scale);
        values.push_back((static_cast<float>(column) + 0.5f) * column_scale);
      }
  }
};

struct Settings {
  Shape strides;
  bool shared;
  bool normalize, ones_first;
  float epsilon, variance_epsilon, activation_epsilon, cost_epsilon;
  std::vector<float> temperatures;  // one per iteration
};

// One run over all output positions of a batch.
class Run {
 public:
  // `weight` is packed in bundles of `bundle` children, or one by one if that is 1.
  Run(const Settings& settings, const Level& level, int64_t bundle, const float* weight, const Coordinates& coordinates,
      const std::vector<Tensor>& in, const std::vector<Output>& results)
      : settings_(settings),
        level_(level),
        bundle_(bundle),
        coordinates_(coordinates),
        grid_{in[kPose].shape[1], in[kPose].shape[2]},
        types_(in[kPose].shape[3]),
        size_(in[kPose].shape[4]),
        parents_(in[kWeight].shape[3]),
        out_grid_{results[0].shape[1], results[0].shape[2]},
        positions_(results[0].shape[0] * out_grid_.height * out_grid_.width),
        pose_(in[kPose], level),
        given_activation_(in[kA], level),
        activation_(given_activation_.data()),
        result_pose_(results[0], level),
        result_activation_(results[1], level) {
    plan(in[kWeight].shape, weight);
    set_betas(Floats(in[kBetaU], level), Floats(in[kBetaA], level));
    if (settings.normalize) normalize(elements(in[kA].shape));
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void all(const Threads& threads) {
    if (positions_ >= 4 || chunks_ == 1) {
      parallel_for(threads, positions_, [this](int64_t position) { position_by_itself(position); });
    } else {
      positions_by_chunk(threads);
    }
    result_pose_.store();
    result_activation_.store();
  }

 private:
  void plan(const Shape& weight_shape, const float* weight) {
    const bool shared = settings_.shared;
    const int64_t side = weight_shape[4];
    places_ = children_of({grid_.height, grid_.width, types_, shared ? grid_.height : weight_shape[0],
                           shared ? grid_.width : weight_shape[1], shared});
    while (places_.size() % static_cast<size_t>(bundle_)) places_.push_back({-1, 0, 0, 0});
    real_ = plan_votes(level_, places_, weight, size_, side, side, side, parents_, 1);
    votes_ = real_;
    if (bundle_ > 1) {
      votes_ = plan_votes(level_, places_, weight, size_, side, side, side, parents_ * bundle_, 1);
      votes_.weight_size = bundle_size(window_layout(weight_shape), bundle_);
      votes_.bundle = static_cast<int>(bundle_);
    }
    children_ = static_cast<int64_t>(places_.size()) / bundle_;
    chunk_children_ = kEmChunk / bundle_;
    chunks_ = (children_ + chunk_children_ - 1) / chunk_children_;
    statistics_floats_ =
        Statistics::floats(size_, votes_.lanes) + (bundle_ > 1 ? Statistics::floats(size_, real_.lanes) : 0);
    pass_floats_ = scratch_floats(votes_) + (bundle_ > 1 ? size_ * bundle_ : 0);
    const int64_t all_votes = children_ * votes_.tile_stride;
    kept_floats_ = settings_.temperatures.size() > 1 && all_votes <= kKeptVotes ? all_votes : 0;
  }

  void set_betas(const Floats& beta_u, const Floats& beta_a) {
    betas_ = Buffer(2 * static_cast<int64_t>(real_.lanes));
    std::fill(betas_.data(), betas_.data() + betas_.size(), 0.0f);
    std::copy(beta_u.data(), beta_u.data() + parents_, betas_.data());
    std::copy(beta_a.data(), beta_a.data() + parents_, betas_.data() + real_.lanes);
  }

  void normalize(int64_t count) {
    normalized_ = Buffer(count);
    for (int64_t i = 0; i < count; ++i) normalized_.data()[i] = activation_[i] / (activation_[i] + settings_.epsilon);
    activation_ = normalized_.data();
  }

  // All passes of one position in one task.
  void position_by_itself(int64_t position) {
    float* memory = thread_scratch(statistics_floats_ + pass_floats_ + kept_floats_);
    const Statistics s(size_, votes_.lanes, memory);
    float* scratch = memory + statistics_floats_;
    float* kept = kept_floats_ ? scratch + pass_floats_ : nullptr;
    for (size_t t = 0; t < settings_.temperatures.size(); ++t) {
      for (int64_t c = 0; c < chunks_; ++c) {
        level_.em(pass_of(position, c, t == 0, s, c ? s.part : s.moments, kept, scratch));
        if (c) level_.em_merge(votes_.pose_elements, votes_.lanes, s.moments, s.part);
      }
      finish(s, t);
    }
    write(position, s);
  }

  // For few positions: each pass divides the children of every position among the tasks.
  void positions_by_chunk(const Threads& threads) {
    const int64_t lanes = votes_.lanes, part_floats = Statistics::moments_floats(size_, lanes);
    Buffer memory(positions_ * statistics_floats_), parts(positions_ * chunks_ * part_floats);
    const auto part_of = [&](int64_t position, int64_t chunk) {
      return Statistics::moments_at(size_, lanes, parts.data() + (position * chunks_ + chunk) * part_floats);
    };
    std::vector<Statistics> all;
    for (int64_t i = 0; i < positions_; ++i) all.emplace_back(size_, lanes, memory.data() + i * statistics_floats_);
    for (size_t t = 0; t < settings_.temperatures.size(); ++t) {
      parallel_for(threads, positions_ * chunks_, [&](int64_t task) {
        const int64_t position = task / chunks_, chunk = task % chunks_;
        const Statistics& s = all[static_cast<size_t>(position)];
        const Moments moments = chunk ? part_of(position, chunk) : s.moments;
        level_.em(pass_of(position, chunk, t == 0, s, moments, nullptr, thread_scratch(pass_floats_)));
      });
      for (int64_t position = 0; position < positions_; ++position) {
        const Statistics& s = all[static_cast<size_t>(position)];
        for (int64_t c = 1; c < chunks_; ++c)
          level_.em_merge(votes_.pose_elements, votes_.lanes, s.moments, part_of(position, c));
        finish(s, t);
      }
    }
    for (int64_t position = 0; position < positions_; ++position) write(position, all[static_cast<size_t>(position)]);
  }

  EmPass pass_of(int64_t position, int64_t chunk, bool first_pass, const Statistics& s, const Moments& moments,
                 float* kept, float* scratch) const {
    const int64_t image = position / (out_grid_.height * out_grid_.width);
    const int64_t place = position % (out_grid_.height * out_grid_.width);
    const int64_t row = place / out_grid_.width * (settings_.shared ? 1 : settings_.strides[0]);
    const int64_t column = place % out_grid_.width * (settings_.shared ? 1 : settings_.strides[1]);
    const int64_t capsule = ((image * grid_.height + row) * grid_.width + column) * types_;
    EmPass p{};
    p.votes = votes_;
    p.first = static_cast<int>(chunk * chunk_children_);
    p.last = static_cast<int>(std::min(children_, (chunk + 1) * chunk_children_));
    p.pose = pose_.data() + capsule * size_;
    p.activation = activation_ + capsule;
    p.first_pass = first_pass;
    p.first_divisor = settings_.ones_first ? 1.0f : static_cast<float>(parents_);
    p.mean = s.mean;
    p.precision = s.precision;
    p.offset = s.offset;
    p.additions = {coordinates_.values.data(), coordinates_.elements.data(),
                   static_cast<int>(coordinates_.elements.size()), static_cast<int>(grid_.width)};
    p.row0 = static_cast<int>(row);
    p.column0 = static_cast<int>(column);
    p.kept = kept;
    p.moments = moments;
    p.scratch = scratch;
    p.bundle_pose = scratch + scratch_floats(votes_);
    return p;
  }

  // The statistics of the real parents follow those that the passes use.
  Statistics real_of(const Statistics& s) const {
    if (bundle_ == 1) return s;
    return {size_, real_.lanes, s.moments.mass + Statistics::floats(size_, votes_.lanes)};
  }

  void finish(const Statistics& s, size_t t) const {
    const Statistics own = real_of(s);
    if (bundle_ > 1) level_.em_fold(real_.pose_elements, real_.parents, real_.lanes, s.moments, own.moments);
    EmFinish f{};
    f.pose_elements = real_.pose_elements;
    f.lanes = real_.lanes;
    f.moments = own.moments;
    f.beta_u = betas_.data();
    f.beta_a = betas_.data() + real_.lanes;
    f.inverse_temperature = settings_.temperatures[t];
    f.epsilon = settings_.epsilon;
    f.variance_epsilon = settings_.variance_epsilon;
    f.activation_epsilon = settings_.activation_epsilon;
    f.cost_epsilon = settings_.cost_epsilon;
    f.mean = own.mean;
    f.precision = own.precision;
    f.offset = own.offset;
    f.activation = own.activation;
    level_.em_finish(f);
    if (bundle_ == 1 || t + 1 == settings_.temperatures.size()) return;
    level_.em_spread(real_.pose_elements, real_.parents, real_.lanes, own.mean, s.mean);
    level_.em_spread(real_.pose_elements, real_.parents, real_.lanes, own.precision, s.precision);
    level_.em_spread(1, real_.parents, real_.lanes, own.offset, s.offset);
  }

  void write(int64_t position, const Statistics& s) {
    const Statistics own = real_of(s);
    to_parents(real_, own.mean, result_pose_.data() + position * parents_ * size_);
    std::copy(own.activation, own.activation + parents_, result_activation_.data() + position * parents_);
  }

  const Settings& settings_;
  const Level& level_;
  const int64_t bundle_;
  const Coordinates& coordinates_;
  const Grid grid_;  // of the children
  const int64_t types_, size_, parents_;
  const Grid out_grid_;
  const int64_t positions_;
  const Floats pose_, given_activation_;
  const float* activation_;  // given, or normalized
  Buffer normalized_;
  FloatOutput result_pose_, result_activation_;
  Buffer betas_;  // beta_u and beta_a, [2][lanes]
  std::vector<Child> places_;
  // Passes run over `votes_`, which are bundles with virtual parents, or children; `real_` are the actual parents.
  Votes votes_, real_;
  int64_t children_, chunk_children_, chunks_;
  int64_t statistics_floats_, pass_floats_, kept_floats_;  // of one position; kept: 0 if votes are recomputed
};

float not_negative(const Attributes& attributes, const char* name) {
  const float value = attributes.number(name);
  expect(value >= 0, "EMRouting", "attribute '", name, "' is ", value, ": wanted a number not below zero");
  return value;
}

class EmRouting : public Operator {
 public:
  EmRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        paper_coordinates_(attributes.flag("coordinate_addition")),
        settings_{attributes.integers("strides"),
                  attributes.flag("shared"),
                  attributes.flag("normalize_activations"),
                  attributes.flag("ones_first"),
                  attributes.number("epsilon"),
                  not_negative(attributes, "variance_epsilon"),
                  not_negative(attributes, "activation_epsilon"),
                  not_negative(attributes, "cost_epsilon"),
                  attributes.numbers("inverse_temperatures")} {
    if (settings_.variance_epsilon == 0) settings_.variance_epsilon = settings_.epsilon;
    const auto count = static_cast<int64_t>(settings_.temperatures.size());
    const int64_t iterations = attributes.iterations();
    expect(iterations == count, name(), "attribute 'iterations' is ", iterations, ", but there are ", count,
           " inverse temperatures: wanted one per iteration");
  }

  void check(const std::vector<Shape>& in) const override {
    const Shape& pose = in[kPose];
    const Shape& weight = in[kWeight];
    const int64_t side = matrix_side(name(), pose[4]);
    expect(weight[4] == side && weight[5] == side, name(), "input 'weight' has shape ", weight, ": wanted matrices of ",
           side, "x", side, " for poses of ", pose[4], " elements");
    expect(!paper_coordinates_ || side >= 2, name(), "coordinate addition wants poses of 2x2 or more");
    expect(!paper_coordinates_ || in.size() <= kCoordinates, name(), "input 'coordinates' and attribute 'coordinate_addition' exclude each other");
    expect(!settings_.shared || (weight[0] == 1 && weight[1] == 1), name(), "input 'weight' has shape ", weight,
           ": shared weights want a window of 1x1");
  }

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kWeight) weight_ = packed(tensor, nullptr);
    if (index == kCoordinates) coordinates_.emplace(tensor, level_);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    if (in[kPose].shape[0] == 0) return;
    const Shape& weight_shape = in[kWeight].shape;
    const int64_t bundle = this->bundle(weight_shape);
    const Level& level = bundle > 1 ? level_ : level_for(level_, weight_shape[3]);
    std::optional<Buffer> own;
    const Buffer& weight = made_once(weight_, own, [&] { return packed(in[kWeight], &threads); });
    std::optional<Coordinates> own_coordinates;
    const Coordinates& coordinates = made_once(coordinates_, own_coordinates, [&] { return coordinates_of(in); });
    Run(settings_, level, bundle, weight.data(), coordinates, in, results).all(threads);
  }

 private:
  int64_t bundle(const Shape& weight) const {
    return bundle_of(window_layout(weight), level_, settings_.shared, weight[2]);
  }
  Coordinates coordinates_of(const std::vector<Tensor>& in) const {
    if (in.size() > kCoordinates) return {in[kCoordinates], level_};
    const Shape& pose = in[kPose].shape;
    const auto side = static_cast<int32_t>(in[kWeight].shape[4]);
    return paper_coordinates_ ? Coordinates(Grid{pose[1], pose[2]}, side) : Coordinates();
  }
  Buffer packed(const Tensor& weight, const Threads* threads) const {
    const WeightLayout layout = window_layout(weight.shape);
    const int64_t bundle = this->bundle(weight.shape);
    return bundle > 1 ? pack_bundles(weight, layout, level_, bundle) : pack(weight, layout, level_, threads);
  }

  const bool paper_coordinates_;
  Settings settings_;
  std::optional<Buffer> weight_;
  std::optional<Coordinates> coordinates_;
};

}  // namespace

std::unique_ptr<Operator> make_em_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<EmRouting>(attributes, level);
}

}  // namespace capsedge
