#include <algorithm>

#include "int8_weight.h"
#include "operator.h"
#include "router.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

enum Input { kPose, kWeight, kPrior, kBias };

WeightLayout layout_of(const Shape& weight) {
  // [I, J, Pout, Pin]
  return {weight[0], weight[1], weight[3], weight[2], weight[2] * weight[3], 1, weight[3]};
}

class DynamicRouting : public Operator {
 public:
  DynamicRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        iterations_(attributes.integer("iterations")),
        leaky_(attributes.flag("leaky")),
        epsilon_(attributes.positive("epsilon")) {
    expect(iterations_ >= 1 && iterations_ <= 1000, name(),
           "attribute 'iterations' is ", iterations_, ": wanted 1 or more (at most 1000)");
  }

  std::vector<Shape> output_shapes(const std::vector<Shape>& in) const override {
    expect_shape(name(), "u", in[kPose], {"N", "I", "Pin"});
    expect_shape(name(), "weight", in[kWeight], {in[kPose][1], "J", "Pout", in[kPose][2]});
    expect_shape(name(), "log_prior", in[kPrior], {in[kPose][1], in[kWeight][1]});
    expect_shape(name(), "bias", in[kBias], {in[kWeight][1], in[kWeight][2]});
    return {{in[kPose][0], in[kWeight][1], in[kWeight][2]}};
  }

  void constant(size_t index, const Tensor& tensor) override {
    if (index == kWeight && tensor.shape.size() == 4) {
      if (is_int8(tensor)) {
        int8_.emplace(tensor, layout_of(tensor.shape), nullptr);
      } else {
        weight_ = pack(tensor, layout_of(tensor.shape), level_, nullptr);
      }
    } else if (index == kPrior) {
      prior_.emplace(tensor, level_);
    }
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kPose].shape;
    const Shape& weight_shape = in[kWeight].shape;
    const int64_t images = shape[0], children = shape[1], size = shape[2];
    const int64_t parents = weight_shape[1], out = weight_shape[2];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats pose(in[kPose], level);
    // Few votes beside many weights: INT8 stays INT8.
    const bool int8 = is_int8(in[kWeight]);
    std::optional<Prior> own_prior;
    const Prior& prior = made_once(prior_, own_prior, [&] { return Prior(in[kPrior], level); });
    const Floats bias_in(in[kBias], level);
    FloatOutput v(results[0], level);

    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    // Images that share a reading of the weights, as long as their votes fit the cache together.
    const int64_t units = out * parents <= 512 ? std::min<int64_t>(images, 4) : 1;
    Routing routing{};
    routing.votes = plan_votes(level, places, nullptr, size, 1, size, out, parents, units);
    const WeightLayout layout = layout_of(weight_shape);
    std::optional<Int8Weight> own_int8;
    std::optional<Buffer> own_weight;
    if (int8) {
      made_once(int8_, own_int8, [&] { return Int8Weight(in[kWeight], layout, &threads); }).use(routing.votes);
    } else {
      routing.votes.weight =
          made_once(weight_, own_weight, [&] { return pack(in[kWeight], layout, level, &threads); }).data();
    }
    routing.children = children;
    routing.weight_floats = elements(weight_shape) / (int8 ? 4 : 1);
    routing.passes = static_cast<int>(iterations_);
    routing.unit_stride = children * size;
    for (int64_t n = 0; n < images; n += units)
      routing.groups.push_back(
          {pose.data() + n * routing.unit_stride, n, static_cast<int>(std::min(units, images - n))});
    routing.scale = 1.0f;
    routing.prior = prior.zero ? nullptr : prior.values.data();
    routing.leaky = leaky_;
    const Votes& votes = routing.votes;
    Buffer bias(static_cast<int64_t>(votes.pose_elements) * votes.lanes);
    from_parents(votes, bias_in.data(), bias.data());
    // The logits after t passes are log_prior + vote · (v of pass 1 + ... + v of pass t): the query is that sum.
    routing.finish = [&](int64_t image, bool last, float* sum, float* query) {
      level.finish_squash(sum, bias.data(), votes.pose_elements, votes.lanes, epsilon_, sum, query);
      if (last) to_parents(votes, sum, v.data() + image * parents * out);
    };
    route(routing, level, threads);
    v.store();
  }

 private:
  struct Prior {
    Prior(const Tensor& tensor, const Level& level) : values(tensor, level, kSlack) {
      const float* first = values.data();
      zero = std::all_of(first, first + elements(tensor.shape), [](float x) { return x == 0; });
    }
    Floats values;
    bool zero;
  };

  const int64_t iterations_;
  const bool leaky_;
  const float epsilon_;
  std::optional<Buffer> weight_;
  std::optional<Int8Weight> int8_;
  std::optional<Prior> prior_;
};

}  // namespace

std::unique_ptr<Operator> make_dynamic_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<DynamicRouting>(attributes, level);
}

}  // namespace capsedge
