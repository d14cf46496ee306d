#include "dense_weight.h"

#include <algorithm>

namespace capsedge {

namespace {

WeightLayout layout_of(const Shape& weight) {
  return {weight[0], weight[1], weight[3], weight[2], weight[2] * weight[3], 1, weight[3]};
}

}  // namespace

void DenseWeight::keep(const Tensor& weight, const Level& level) {
  if (is_int8(weight)) {
    int8_.emplace(weight, layout_of(weight.shape), nullptr);
  } else {
    floats_ = pack(weight, layout_of(weight.shape), level, nullptr);
  }
}

void DenseWeight::use(const Tensor& weight, const Level& level, const Threads& threads, Packed& own,
                      Votes& votes) const {
  const WeightLayout layout = layout_of(weight.shape);
  if (is_int8(weight)) {
    made_once(int8_, own.int8, [&] { return Int8Weight(weight, layout, &threads); }).use(votes);
  } else {
    votes.weight = made_once(floats_, own.floats, [&] { return pack(weight, layout, level, &threads); }).data();
  }
}

int64_t weight_floats(const Tensor& weight) { return elements(weight.shape) / (is_int8(weight) ? 4 : 1); }

int64_t images_together(int64_t images, int64_t vote_elements, int64_t weight_floats) {
  return vote_elements <= 512 || weight_floats >= kUncachedWeights ? std::min<int64_t>(images, 4) : 1;
}

}  // namespace capsedge
