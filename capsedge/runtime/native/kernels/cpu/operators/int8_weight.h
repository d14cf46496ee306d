// INT8 weights that stay INT8 in memory and become floats in registers, for routing that reads each weight only once or
// twice and therefore waits for memory.
#pragma once

#include "support/plan.h"

namespace capsedge {

struct Int8Weight {
  Buffer bytes;  // packed as floats are
  Buffer scale;  // [column][parent], and zeros up to whole strips

  Int8Weight(const Tensor& weight, const WeightLayout& layout, const Threads* threads);
  // Uses it in place of the floats.
  void use(Votes& votes) const;
};

}  // namespace capsedge
