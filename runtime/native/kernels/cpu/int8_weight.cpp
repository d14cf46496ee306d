#include "int8_weight.h"

#include <algorithm>

namespace capsedge {

Int8Weight::Int8Weight(const Tensor& weight, const WeightLayout& layout, const Threads* threads)
    : bytes((layout.numbers * packed_size(layout.inner, layout.columns, layout.parents) + 3) / 4),
      scale(round_up(layout.columns * layout.parents, kStrip) + kStrip) {
  const int64_t lanes = layout.columns * layout.parents;
  std::fill(scale.data(), scale.data() + scale.size(), 0.0f);
  for (int64_t column = 0; column < layout.columns; ++column)
    for (int64_t parent = 0; parent < layout.parents; ++parent)
      scale.data()[column * layout.parents + parent] = weight.scale[parent * layout.columns + column];
  const auto pack_one = [&](int64_t number) {
    const int8_t* from = static_cast<const int8_t*>(weight.data) + number * lanes * layout.inner;
    int8_t* to = reinterpret_cast<int8_t*>(bytes.data()) +
                 number * packed_size(layout.inner, layout.columns, layout.parents);
    for (int64_t at = 0; at < lanes; at += kStrip) {
      const int64_t width = std::min<int64_t>(kStrip, round_up(lanes - at, kStrip / 2));
      for (int64_t k = 0; k < layout.inner; ++k)
        for (int64_t lane = at; lane < at + width; ++lane) {
          const int64_t column = lane / layout.parents, parent = lane % layout.parents;
          *to++ = lane < lanes ? from[parent * layout.parent_stride + k * layout.inner_stride +
                                      column * layout.column_stride]
                               : int8_t{0};
        }
    }
  };
  if (threads) {
    parallel_for(*threads, layout.numbers, pack_one);
  } else {
    for (int64_t number = 0; number < layout.numbers; ++number) pack_one(number);
  }
}

void Int8Weight::use(Votes& votes) const {
  votes.bytes = reinterpret_cast<const int8_t*>(bytes.data());
  votes.scale = scale.data();
}

}  // namespace capsedge
