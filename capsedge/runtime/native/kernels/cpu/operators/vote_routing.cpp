#include "agreement.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

enum Input { kVotes, kPrior, kBias, kImagePrior };

class VoteRouting : public Operator {
 public:
  VoteRouting(const Attributes& attributes, const Level& level) : Operator(attributes, level), rule_(attributes) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& in) const override {
    const Shape& votes = in[kVotes];
    expect_shape(name(), "votes", votes, {"N", "I", "J", "P"});
    // Votes that all parents have do not say how many there are.
    const int64_t parents = votes[2] == 1 && in[kPrior].size() == 2 ? in[kPrior][1] : votes[2];
    expect_couplings(name(), in, kPrior, kImagePrior, votes[0], votes[1], parents);
    expect_shape(name(), "bias", in[kBias], {parents, votes[3]});
    return {{votes[0], parents, votes[3]}};
  }

  void constant(size_t index, const Tensor& tensor) override {
    if (index == kPrior) prior_.emplace(tensor, level_);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kVotes].shape;
    const int64_t images = shape[0], children = shape[1], own = shape[2], size = shape[3];
    const int64_t parents = in[kPrior].shape[1];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats given(in[kVotes], level), bias(in[kBias], level);
    std::optional<Prior> own_prior;
    const Prior& prior = made_once(prior_, own_prior, [&] { return Prior(in[kPrior], level); });
    const Couplings couplings = couplings_of(prior, in, kImagePrior, children, parents, level);
    FloatOutput v(results[0], level);
    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    Votes votes = plan_votes(level, places, nullptr, own * size, 1, 0, size, parents, 1);
    votes.given = true;
    votes.of_all = own < parents;
    route_by_agreement(rule_,
                       {votes, images, children, 1, 0, given.data(), children * own * size, couplings, bias.data(),
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
