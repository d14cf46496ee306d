#include <algorithm>

#include "agreement.h"
#include "dense_weight.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

// The bias of the votes, [I or 1][J][Pout], in the layout of votes: [Pout][J], padded with zeros to whole vectors.
struct VoteBias {
  VoteBias(const Tensor& tensor, const Level& level) {
    const int64_t children = tensor.shape[0], parents = tensor.shape[1], size = tensor.shape[2];
    const Floats from(tensor, level);
    const float* first = from.data();
    if (std::all_of(first, first + elements(tensor.shape), [](float x) { return x == 0; })) return;
    row = round_up(parents * size, kSlack);
    stride = children > 1 ? row : 0;
    Buffer& to = values.emplace(children * row);
    std::fill(to.data(), to.data() + to.size(), 0.0f);
    for (int64_t i = 0; i < children; ++i)
      for (int64_t m = 0; m < parents; ++m)
        for (int64_t h = 0; h < size; ++h) to.data()[i * row + h * parents + m] = *first++;
  }
  std::optional<Buffer> values;  // empty if all are zero
  int64_t row = 0, stride = 0;
};

using namespace places::DynamicRouting;

class DynamicRouting : public Operator {
 public:
  DynamicRouting(const Attributes& attributes, const Level& level)
      : Operator(attributes, level),
        rule_(attributes) {}

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kWeight) {
      weight_.keep(tensor, level_);
    } else if (index == kLogPrior) {
      prior_.emplace(tensor, level_);
    } else if (index == kVoteBias) {
      vote_bias_.emplace(tensor, level_);
    }
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kU].shape;
    const Shape& weight_shape = in[kWeight].shape;
    const int64_t images = shape[0], children = shape[1], size = shape[2];
    const int64_t parents = weight_shape[1], out = weight_shape[2];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats pose(in[kU], level), bias(in[kBias], level);
    std::optional<Prior> own_prior;
    const Prior& prior = made_once(prior_, own_prior, [&] { return Prior(in[kLogPrior], level); });
    const Couplings couplings = couplings_of(prior, in, kImagePrior, children, parents, level);
    FloatOutput v(results[0], level);

    const bool one = weight_shape[0] < children;
    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    const int64_t units = one ? 1 : images_together(images, out * parents, weight_floats(in[kWeight]));
    Votes votes = plan_votes(level, places, nullptr, size, 1, size, out, parents, units);
    votes.one_weight = one;
    DenseWeight::Packed own_weight;
    weight_.use(in[kWeight], level, threads, own_weight, votes);
    std::optional<VoteBias> own_bias;
    if (has_vote_bias(in)) {
      const VoteBias& added = made_once(vote_bias_, own_bias, [&] { return VoteBias(in[kVoteBias], level); });
      votes.bias = added.values ? added.values->data() : nullptr;
      votes.bias_stride = added.stride;
    }
    route_by_agreement(rule_,
                       {votes, images, children, units, weight_floats(in[kWeight]), pose.data(),
                        children * size, couplings, bias.data(), v.data()},
                       level, threads);
    v.store();
  }

 private:
  // Whether the input is present, in a list of shapes or of tensors.
  template <typename X>
  static bool has_vote_bias(const std::vector<X>& in) {
    return in.size() > kVoteBias;
  }

  const Agreement rule_;
  DenseWeight weight_;
  std::optional<VoteBias> vote_bias_;
  std::optional<Prior> prior_;
};

}  // namespace

std::unique_ptr<Operator> make_dynamic_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<DynamicRouting>(attributes, level);
}

}  // namespace capsedge
