#include "agreement.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

enum Input { kVotes, kPrior, kBias, kImagePrior };

class VoteRouting : public Operator {
 public:
  VoteRouting(const Attributes& attributes, const Level& level) : Operator(attributes, level), rule_(attributes) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& in) const override {
    expect_shape(name(), "votes", in[kVotes], {"N", "I", "J", "P"});
    expect_couplings(name(), in, kPrior, kImagePrior, in[kVotes][0], in[kVotes][1], in[kVotes][2]);
    expect_shape(name(), "bias", in[kBias], {in[kVotes][2], in[kVotes][3]});
    return {{in[kVotes][0], in[kVotes][2], in[kVotes][3]}};
  }

  void constant(size_t index, const Tensor& tensor) override {
    if (index == kPrior) prior_.emplace(tensor, level_);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kVotes].shape;
    const int64_t images = shape[0], children = shape[1], parents = shape[2], size = shape[3];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats given(in[kVotes], level), bias(in[kBias], level);
    std::optional<Prior> own_prior;
    const Prior& prior = made_once(prior_, own_prior, [&] { return Prior(in[kPrior], level); });
    const Couplings couplings = couplings_of(prior, in, kImagePrior, children, parents, level);
    FloatOutput v(results[0], level);
    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    Votes votes = plan_votes(level, places, nullptr, parents * size, 1, 0, size, parents, 1);
    votes.given = true;
    route_by_agreement(rule_,
                       {votes, images, children, 1, 0, given.data(), children * parents * size, couplings, bias.data(),
                        v.data()},
                       level, threads);
    v.store();
  }

 private:
  const Agreement rule_;
  std::optional<Prior> prior_;
};

}  // namespace

std::unique_ptr<Operator> make_vote_routing(const Attributes& attributes, const Level& level) {
  return std::make_unique<VoteRouting>(attributes, level);
}

}  // namespace capsedge
