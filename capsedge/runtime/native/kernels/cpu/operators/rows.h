// The common part of squash and layer normalization: independent rows of floats, in parallel, in either storage type.
#pragma once

#include "support/plan.h"

namespace capsedge {

// f(x, y, rows) over parts of a tensor whose rows have `size` elements; x and y may be the same.
template <typename F>
void for_rows(const char* op, const Tensor& x, const Output& y, int64_t size, const Level& level,
              const Threads& threads, F&& f) {
  expect(x.type == Type::kFloat || x.type == Type::kFloat16, op, "input 'x' is neither float nor float16");
  const int64_t all = elements(x.shape);
  if (all == 0) return;
  // Parts of about 64 KB, each with whole vectors of rows.
  const int64_t part = round_up(std::max<int64_t>(1, 16384 / size), 16) * size;
  parallel_for(threads, (all + part - 1) / part, [&](int64_t task) {
    const int64_t at = task * part, count = std::min(part, all - at);
    if (x.type == Type::kFloat)
      return f(static_cast<const float*>(x.data) + at, static_cast<float*>(y.data) + at, count / size);
    float* wide = thread_scratch(count);
    level.widen(static_cast<const uint16_t*>(x.data) + at, wide, count);
    f(wide, wide, count / size);
    level.narrow(wide, static_cast<uint16_t*>(y.data) + at, count);
  });
}

}  // namespace capsedge
