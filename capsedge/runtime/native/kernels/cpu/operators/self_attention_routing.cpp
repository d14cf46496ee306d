#include <algorithm>
#include <cmath>

#include "dense_weight.h"
#include "router.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

using namespace places::SelfAttentionRouting;

// Two passes: the first sums all votes with equal couplings, the second compares votes with that sum.
class SelfAttentionRouting : public Operator {
 public:
  SelfAttentionRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level), epsilon_(attributes.number("epsilon")) {}

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kWeight) {
      weight_.keep(tensor, level_);
    } else if (index == kBias) {
      bias_.emplace(tensor, level_);
    }
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kU].shape;
    const Shape& weight_shape = in[kWeight].shape;
    const int64_t images = shape[0], children = shape[1], size = shape[2];
    const int64_t parents = weight_shape[1], out = weight_shape[2];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats pose(in[kU], level);
    std::optional<Bias> own_bias;
    const Bias& bias = made_once(bias_, own_bias, [&] { return Bias(in[kBias], level); });
    FloatOutput v(results[0], level);

    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    const int64_t units = images_together(images, out * parents, weight_floats(in[kWeight]));
    Routing routing{};
    routing.votes = plan_votes(level, places, nullptr, size, 1, size, out, parents, units);
    DenseWeight::Packed own_weight;
    weight_.use(in[kWeight], level, threads, own_weight, routing.votes);
    routing.children = children;
    routing.weight_floats = weight_floats(in[kWeight]);
    routing.passes = 2;
    routing.unit_stride = children * size;
    for (int64_t n = 0; n < images; n += units)
      routing.groups.push_back(
          {pose.data() + n * routing.unit_stride, n, static_cast<int>(std::min(units, images - n))});
    // Equal couplings are 1/J: the sum that votes agree with is J times that of the first pass.
    routing.scale = static_cast<float>(parents) / std::sqrt(static_cast<float>(out));
    routing.bias = bias.zero ? nullptr : bias.values.data();
    const Votes& votes = routing.votes;
    const int64_t sums = static_cast<int64_t>(votes.pose_elements) * votes.lanes;
    routing.finish = [&](int64_t image, bool last, float* sum, float* query) {
      if (!last) {
        std::copy(sum, sum + sums, query);
        return;
      }
      level.finish_exponential(sum, votes.pose_elements, votes.lanes, epsilon_, sum);
      to_parents(votes, sum, v.data() + image * parents * out);
    };
    route(routing, level, threads);
    v.store();
  }

 private:
  struct Bias {
    Bias(const Tensor& tensor, const Level& level) : values(tensor, level, kSlack) {
      const float* first = values.data();
      zero = std::all_of(first, first + elements(tensor.shape), [](float x) { return x == 0; });
    }
    Floats values;
    bool zero;
  };

  const float epsilon_;
  DenseWeight weight_;
  std::optional<Bias> bias_;
};

}  // namespace

std::unique_ptr<Operator> make_self_attention_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<SelfAttentionRouting>(attributes, level);
}

}  // namespace capsedge
