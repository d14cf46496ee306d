#include "int8_weight.h"

namespace capsedge {

Int8Weight::Int8Weight(const Tensor& weight, const WeightLayout& layout, const Threads* threads)
    : bytes((layout.numbers * packed_size(layout.inner, layout.columns, layout.parents) + 3) / 4),
      scale(round_up(layout.lanes(), kStrip) + kStrip) {
  std::fill(scale.data(), scale.data() + scale.size(), 0.0f);
  for (int64_t column = 0; column < layout.columns; ++column)
    for (int64_t parent = 0; parent < layout.parents; ++parent)
      scale.data()[column * layout.parents + parent] = weight.scale[parent * layout.columns + column];
  parallel_for(threads, layout.numbers, [&](int64_t number) {
    const int8_t* from = static_cast<const int8_t*>(weight.data) + number * layout.size();
    int8_t* to = reinterpret_cast<int8_t*>(bytes.data()) +
                 number * packed_size(layout.inner, layout.columns, layout.parents);
    for (int64_t at = 0; at < layout.lanes(); at += kStrip) to = pack_strip(from, layout, at, to);
  });
}

void Int8Weight::use(Votes& votes) const {
  votes.bytes = reinterpret_cast<const int8_t*>(bytes.data());
  votes.scale = scale.data();
}

}  // namespace capsedge
