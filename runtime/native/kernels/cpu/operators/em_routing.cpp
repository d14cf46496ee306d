#include <algorithm>

#include "operator.h"
#include "simd/dispatch.h"
#include "support/plan.h"

namespace capsedge {

namespace {

constexpr char kName[] = "EMRouting";
enum Input { kPose, kActivation, kWeight, kBetaU, kBetaA };

// As many children as one pass takes. Longer than elsewhere: every part begins with the slower kind of block.
constexpr int kEmChunk = 2 * kChunk;

// Votes of one position are kept between passes up to this size, where they stay in a core's second-level cache: to
// make them again would read as much, since the weights are as large.
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

class EmRouting : public Operator {
 public:
  EmRouting(const Attributes& attributes, const Level& level)
      : Operator(level),
        strides_(attributes.strides(kName)),
        coordinates_(attributes.flag(kName, "coordinate_addition", false)),
        shared_(attributes.flag(kName, "shared", false)),
        epsilon_(attributes.positive(kName, "epsilon", 1e-6f)) {
    attributes.find("inverse_temperatures", temperatures_);
    const auto count = static_cast<int64_t>(temperatures_.size());
    expect(count >= 1, kName, "attribute 'inverse_temperatures' is missing or empty: wanted one number an iteration");
    const int64_t iterations = attributes.integer(kName, "iterations", count);
    expect(iterations == count, kName, "attribute 'iterations' is ", iterations, ", but there are ", count,
           " inverse temperatures: wanted one an iteration");
  }

  std::vector<Shape> outputs(const std::vector<Shape>& in) const override {
    expect(in.size() == 5, kName, "wanted five inputs");
    expect_shape(kName, "pose", in[kPose], {"N", "H", "W", "C", "P"});
    const Shape& pose = in[kPose];
    const Shape& weight = in[kWeight];
    const int64_t side = matrix_side(kName, pose[4]);
    expect_shape(kName, "a", in[kActivation], {pose[0], pose[1], pose[2], pose[3]});
    expect_shape(kName, "weight", weight, {"Kh", "Kw", pose[3], "M", side, side});
    expect_shape(kName, "beta_u", in[kBetaU], {weight[3]});
    expect_shape(kName, "beta_a", in[kBetaA], {weight[3]});
    expect(!coordinates_ || side >= 2, kName, "coordinate addition wants poses of 2x2 or more");
    Grid grid{1, 1};
    if (shared_) {
      expect(weight[0] == 1 && weight[1] == 1, kName, "input 'weight' has shape ", weight,
             ": shared weights want a window of 1x1");
    } else {
      grid = output_grid(kName, pose, weight[0], weight[1], strides_);
    }
    return {{pose[0], grid.height, grid.width, weight[3], pose[4]}, {pose[0], grid.height, grid.width, weight[3]}};
  }

  void constant(size_t index, const Tensor& tensor) override {
    if (index == kWeight && tensor.shape.size() == 6) weight_ = packed(tensor, nullptr);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override;

 private:
  int64_t bundle(const Shape& weight) const { return bundle_of(window_layout(weight), level_, shared_, weight[2]); }
  Buffer packed(const Tensor& weight, const Threads* threads) const {
    const WeightLayout layout = window_layout(weight.shape);
    const int64_t bundle = this->bundle(weight.shape);
    return bundle > 1 ? pack_bundles(weight, layout, level_, bundle) : pack(weight, layout, level_, threads);
  }

  const Shape strides_;
  const bool coordinates_;
  const bool shared_;
  const float epsilon_;
  std::vector<float> temperatures_;
  std::optional<Buffer> weight_;
};

void EmRouting::run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const {
  const Shape& shape = in[kPose].shape;
  const Shape& weight_shape = in[kWeight].shape;
  const int64_t images = shape[0], height = shape[1], width = shape[2], types = shape[3], size = shape[4];
  if (images == 0) return;
  const int64_t parents = weight_shape[3], side = weight_shape[4];
  const int64_t bundle = this->bundle(weight_shape);
  const Level& level = bundle > 1 ? level_ : level_for(level_, parents);
  const int64_t grid_height = results[0].shape[1], grid_width = results[0].shape[2];
  const Floats pose(in[kPose], level), activation(in[kActivation], level);
  const Floats beta_u_in(in[kBetaU], level), beta_a_in(in[kBetaA], level);
  std::optional<Buffer> own_weight;
  const float* weight = made_once(weight_, own_weight, [&] { return packed(in[kWeight], &threads); }).data();
  FloatOutput result_pose(results[0], level), result_activation(results[1], level);

  std::vector<Child> places =
      children_of({height, width, types, shared_ ? height : weight_shape[0], shared_ ? width : weight_shape[1], shared_});
  while (places.size() % static_cast<size_t>(bundle)) places.push_back({-1, 0, 0, 0});
  // `votes` is what passes go over, bundles with virtual parents or children; `real` are the parents themselves.
  const Votes real = plan_votes(level, places, weight, size, side, side, side, parents, 1);
  Votes votes = real;
  if (bundle > 1) {
    votes = plan_votes(level, places, weight, size, side, side, side, parents * bundle, 1);
    votes.weight_size = bundle_size(window_layout(weight_shape), bundle);
    votes.bundle = static_cast<int>(bundle);
  }
  const auto children = static_cast<int64_t>(places.size()) / bundle;
  const int64_t chunk_children = kEmChunk / bundle, chunks = (children + chunk_children - 1) / chunk_children;
  const int64_t elements = size, lanes = votes.lanes;
  const int64_t statistics_floats =
      Statistics::floats(elements, lanes) + (bundle > 1 ? Statistics::floats(elements, real.lanes) : 0);
  const int64_t pass_floats = scratch_floats(votes) + (bundle > 1 ? size * bundle : 0);
  Buffer betas(2 * static_cast<int64_t>(real.lanes));
  std::fill(betas.data(), betas.data() + betas.size(), 0.0f);
  std::copy(beta_u_in.data(), beta_u_in.data() + parents, betas.data());
  std::copy(beta_a_in.data(), beta_a_in.data() + parents, betas.data() + real.lanes);

  const auto pass_of = [&](int64_t position, int64_t chunk, bool first_pass, const Statistics& s,
                           const Moments& moments, float* kept, float* scratch) {
    const int64_t image = position / (grid_height * grid_width), place = position % (grid_height * grid_width);
    const int64_t row = place / grid_width * (shared_ ? 1 : strides_[0]);
    const int64_t column = place % grid_width * (shared_ ? 1 : strides_[1]);
    const int64_t capsule = ((image * height + row) * width + column) * types;
    EmPass p{};
    p.votes = votes;
    p.first = static_cast<int>(chunk * chunk_children);
    p.last = static_cast<int>(std::min(children, (chunk + 1) * chunk_children));
    p.pose = pose.data() + capsule * size;
    p.activation = activation.data() + capsule;
    p.first_pass = first_pass;
    p.mean = s.mean;
    p.precision = s.precision;
    p.offset = s.offset;
    p.coordinates = coordinates_;
    p.row0 = static_cast<int>(row);
    p.column0 = static_cast<int>(column);
    p.row_scale = 1.0f / static_cast<float>(height);
    p.column_scale = 1.0f / static_cast<float>(width);
    p.kept = kept;
    p.moments = moments;
    p.scratch = scratch;
    p.bundle_pose = scratch + scratch_floats(votes);
    return p;
  };
  // The statistics of a position's parents lie behind those that passes use.
  const auto real_of = [&](const Statistics& s) {
    return bundle > 1 ? Statistics(elements, real.lanes, s.moments.mass + Statistics::floats(elements, lanes)) : s;
  };
  const auto finish = [&](const Statistics& s, size_t t) {
    const Statistics own = real_of(s);
    if (bundle > 1) level.em_fold(real.pose_elements, real.parents, real.lanes, s.moments, own.moments);
    EmFinish f{};
    f.pose_elements = real.pose_elements;
    f.lanes = real.lanes;
    f.moments = own.moments;
    f.beta_u = betas.data();
    f.beta_a = betas.data() + real.lanes;
    f.inverse_temperature = temperatures_[t];
    f.epsilon = epsilon_;
    f.mean = own.mean;
    f.precision = own.precision;
    f.offset = own.offset;
    f.activation = own.activation;
    level.em_finish(f);
    if (bundle == 1 || t + 1 == temperatures_.size()) return;
    level.em_spread(real.pose_elements, real.parents, real.lanes, own.mean, s.mean);
    level.em_spread(real.pose_elements, real.parents, real.lanes, own.precision, s.precision);
    level.em_spread(1, real.parents, real.lanes, own.offset, s.offset);
  };
  const auto write = [&](int64_t position, const Statistics& s) {
    const Statistics own = real_of(s);
    to_parents(real, own.mean, result_pose.data() + position * parents * size);
    std::copy(own.activation, own.activation + parents, result_activation.data() + position * parents);
  };

  const int64_t positions = images * grid_height * grid_width;
  const int64_t all_votes = children * votes.tile_stride;
  const int64_t kept_floats = temperatures_.size() > 1 && all_votes <= kKeptVotes ? all_votes : 0;
  if (positions >= 4 || chunks == 1) {
    parallel_for(threads, positions, [&](int64_t position) {
      float* memory = thread_scratch(statistics_floats + pass_floats + kept_floats);
      const Statistics s(elements, lanes, memory);
      float* scratch = memory + statistics_floats;
      float* kept = kept_floats ? scratch + pass_floats : nullptr;
      for (size_t t = 0; t < temperatures_.size(); ++t) {
        for (int64_t c = 0; c < chunks; ++c) {
          level.em(pass_of(position, c, t == 0, s, c ? s.part : s.moments, kept, scratch));
          if (c) level.em_merge(votes.pose_elements, votes.lanes, s.moments, s.part);
        }
        finish(s, t);
      }
      write(position, s);
    });
  } else {
    // Few positions: each pass shares a position's children out instead.
    const int64_t part_floats = Statistics::moments_floats(elements, lanes);
    Buffer memory(positions * statistics_floats), parts(positions * chunks * part_floats);
    std::vector<Statistics> all;
    for (int64_t i = 0; i < positions; ++i) all.emplace_back(elements, lanes, memory.data() + i * statistics_floats);
    for (size_t t = 0; t < temperatures_.size(); ++t) {
      parallel_for(threads, positions * chunks, [&](int64_t task) {
        const int64_t position = task / chunks, chunk = task % chunks;
        const Statistics& s = all[static_cast<size_t>(position)];
        const Moments part = Statistics::moments_at(elements, lanes, parts.data() + task * part_floats);
        level.em(pass_of(position, chunk, t == 0, s, chunk ? part : s.moments, nullptr,
                          thread_scratch(pass_floats)));
      });
      for (int64_t position = 0; position < positions; ++position) {
        const Statistics& s = all[static_cast<size_t>(position)];
        for (int64_t c = 1; c < chunks; ++c)
          level.em_merge(votes.pose_elements, votes.lanes, s.moments,
                          Statistics::moments_at(elements, lanes, parts.data() + (position * chunks + c) * part_floats));
        finish(s, t);
      }
    }
    for (int64_t position = 0; position < positions; ++position) write(position, all[static_cast<size_t>(position)]);
  }
  result_pose.store();
  result_activation.store();
}

}  // namespace

std::unique_ptr<Operator> make_em_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<EmRouting>(attributes, level);
}

}  // namespace capsedge
