#include "agreement.h"
#include "simd/dispatch.h"

namespace capsedge {

namespace {

using namespace places::VoteRouting;

class VoteRouting : public Operator {
 public:
  VoteRouting(const Attributes& attributes, const Level& level) : Operator(attributes, level), rule_(attributes) {}

  void keep(size_t index, const Tensor& tensor) override {
    if (index == kLogPrior) prior_.emplace(tensor, level_);
  }

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const Shape& shape = in[kVotes].shape;
    const int64_t images = shape[0], children = shape[1], own = shape[2], size = shape[3];
    const int64_t parents = in[kLogPrior].shape[1];
    if (images == 0) return;
    const Level& level = level_for(level_, parents);
    const Floats given(in[kVotes], level), bias(in[kBias], level);
    std::optional<Prior> own_prior;
    const Prior& prior = made_once(prior_, own_prior, [&] { return Prior(in[kLogPrior], level); });
    const Couplings couplings = couplings_of(prior, in, kImagePrior, children, parents, level);
    FloatOutput v(results[0], level);
    const std::vector<Child> places = children_of({1, 1, children, 1, 1, false});
    Votes votes = plan_votes(level, places, nullptr, own * size, 1, 0, size, parents, 1);
    votes.given = true;
    votes.of_all = own < parents;
    if (votes.of_all) votes.tile_stride = 2 * round_up(size, kSlack);
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
