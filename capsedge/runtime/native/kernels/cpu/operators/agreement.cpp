#include "agreement.h"

#include <algorithm>

namespace capsedge {

Agreement::Agreement(const Attributes& attributes)
    : leaky(attributes.flag("leaky")),
      over_children(attributes.flag("over_children")),
      replace(attributes.flag("replace")),
      normalize(attributes.flag("normalize")),
      elementwise(attributes.flag("elementwise")),
      scale(attributes.number("agreement_scale")),
      epsilon(attributes.positive("epsilon")) {
  const char* name = attributes.spec().name;
  const int64_t found = attributes.integer("iterations");
  expect(found >= 1 && found <= 1000, name, "attribute 'iterations' is ", found, ": wanted 1 or more (at most 1000)");
  iterations = static_cast<int>(found);
  expect(!(leaky && over_children), name, "attributes 'leaky' and 'over_children' exclude each other");
}

Prior::Prior(const Tensor& tensor, const Level& level) : values(tensor, level, kSlack) {
  const float* first = values.data();
  zero = std::all_of(first, first + elements(tensor.shape), [](float x) { return x == 0; });
}

void route_by_agreement(const Agreement& rule, const AgreementRun& run, const Level& level, const Threads& threads) {
  const Votes& votes = run.votes;
  Routing routing{};
  routing.votes = votes;
  routing.children = run.children;
  routing.weight_floats = run.weight_floats;
  routing.passes = rule.iterations;
  routing.unit_stride = run.image_stride;
  for (int64_t n = 0; n < run.images; n += run.units)
    routing.groups.push_back(
        {run.pose + n * run.image_stride, n, static_cast<int>(std::min(run.units, run.images - n))});
  routing.scale = rule.scale;
  routing.prior = run.prior.zero ? nullptr : run.prior.values.data();
  routing.leaky = rule.leaky;
  routing.over_children = rule.over_children;
  routing.replace = rule.replace;
  Buffer bias(static_cast<int64_t>(votes.pose_elements) * votes.lanes);
  from_parents(votes, run.bias, bias.data());
  const AgreementFinish finish{votes.pose_elements, votes.lanes,    bias.data(),  rule.over_children,
                               rule.elementwise,    rule.normalize, rule.replace, rule.epsilon};
  const int64_t size = static_cast<int64_t>(votes.parents) * votes.pose_elements;
  // The logits after t passes are log_prior + scale · vote · (v of pass 1 + ... + v of pass t): the query is that sum,
  // or the last v alone where logits are replaced.
  routing.finish = [&](int64_t image, bool last, float* sum, float* query) {
    level.finish_agreement(finish, sum, sum, query);
    if (last) to_parents(votes, sum, run.out + image * size);
  };
  route(routing, level, threads);
}

}  // namespace capsedge
