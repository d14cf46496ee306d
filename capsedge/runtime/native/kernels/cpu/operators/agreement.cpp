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
      epsilon(attributes.number("epsilon")) {
  iterations = static_cast<int>(attributes.iterations());
  expect(!(leaky && over_children), attributes.spec().name, "attributes 'leaky' and 'over_children' exclude each other");
}

Prior::Prior(const Tensor& tensor, const Level& level)
    : values(tensor, level, kSlack),
      rows(tensor.shape.empty() ? 1 : tensor.shape[0]) {
  const float* first = values.data();
  zero = std::all_of(first, first + elements(tensor.shape), [](float x) { return x == 0; });
}

Couplings couplings_of(const Prior& prior, const std::vector<Tensor>& in, size_t first, int64_t children,
                       int64_t parents, const Level& level) {
  Couplings found{};
  found.prior = prior.zero ? nullptr : prior.values.data();
  std::optional<Floats> of_images;
  Shape shape{1, 1, 1};
  if (in.size() > first) {
    of_images.emplace(in[first], level);
    const float* begin = of_images->data();
    shape = in[first].shape;
    if (std::all_of(begin, begin + elements(shape), [](float x) { return x == 0; })) of_images.reset();
  }
  if (of_images || (found.prior && prior.rows < children)) {
    const int64_t images = of_images ? shape[0] : 1, size = children * parents;
    found.prior_stride = images > 1 ? size : 0;
    found.made = Buffer(images * size + kSlack);
    float* to = found.made.data();
    std::fill(to + images * size, to + images * size + kSlack, 0.0f);
    const float none = 0;
    const int64_t own_step = found.prior ? 1 : 0, image_step = of_images && shape[2] > 1 ? 1 : 0;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t i = 0; i < children; ++i, to += parents) {
        const float* own = found.prior ? found.prior + (prior.rows > 1 ? i * parents : 0) : &none;
        const int64_t row = n * shape[1] + (shape[1] > 1 ? i : 0);
        const float* of_image = of_images ? of_images->data() + row * shape[2] : &none;
        for (int64_t m = 0; m < parents; ++m) to[m] = own[m * own_step] + of_image[m * image_step];
      }
    found.prior = found.made.data();
  }
  if (in.size() > first + 1) {
    const Floats given(in[first + 1], level);
    const Shape& size = in[first + 1].shape;
    found.mask_stride = size[0] > 1 ? children : 0;
    found.mask = Buffer(size[0] * children);
    for (int64_t k = 0; k < size[0] * children; ++k)
      found.mask.data()[k] = given.data()[size[1] > 1 ? k : k / children];
  }
  return found;
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
  routing.prior = run.couplings.prior;
  routing.prior_stride = run.couplings.prior_stride;
  routing.mask = run.couplings.mask.data();
  routing.mask_stride = run.couplings.mask_stride;
  routing.leaky = rule.leaky;
  routing.over_children = rule.over_children;
  routing.replace = rule.replace;
  Buffer bias(static_cast<int64_t>(votes.pose_elements) * votes.lanes);
  from_parents(votes, run.bias, bias.data());
  const AgreementFinish finish{votes.pose_elements, votes.lanes,    bias.data(),  rule.over_children,
                               rule.elementwise,    rule.normalize, rule.replace, rule.epsilon};
  const int64_t size = static_cast<int64_t>(votes.parents) * votes.pose_elements;
  // The logits after t passes are log_prior + scale · vote · (v of pass 1 + ... + v of pass t): the query is that sum,
  // or only the last v if logits are replaced.
  routing.finish = [&](int64_t image, bool last, float* sum, float* query) {
    level.finish_agreement(finish, sum, sum, query);
    if (last) to_parents(votes, sum, run.out + image * size);
  };
  route(routing, level, threads);
}

}  // namespace capsedge
