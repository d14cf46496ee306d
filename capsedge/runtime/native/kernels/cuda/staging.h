// Copies weights to shared memory. A row is one parent's weights for one child. It is contiguous in memory and followed
// by the rows of the child's other parents and those of the next child, so a tile is one copy without any index
// arithmetic. A group of threads copies a row, each thread four elements at a time.
#pragma once

#include "access.h"

namespace capsedge {
namespace cuda {

// Four weights in FP32, unchanged.
CAPSEDGE_DEVICE void copy_four(const Block& b, const float* from, float* to) { b.copy_async(to, from); }
CAPSEDGE_DEVICE void copy_four(const Block&, const Half* from, float* to) {
  float four[4];
  load4(from, four);
  store4(four, to);
}

// Four INT8 weights times their scales, which are `step` apart: all in one column, or in four columns.
CAPSEDGE_DEVICE void copy_scaled(const int8_t* from, const float* scales, int step, float* to) {
  float four[4];
  load4(from, four);
#pragma unroll
  for (int k = 0; k < 4; ++k) four[k] *= scales[k * step];
  store4(four, to);
}

// Copies rows from `first` on to `tile`, l.stride apart. Each thread then waits for its own copies, and the block for
// all.
template <typename W>
CAPSEDGE_DEVICE void stage(const Block& b, const Layer& l, int64_t first, int rows, float* tile) {
  const int matrix = l.inner * l.columns, together = b.threads() >> l.row_shift;
  const int mine = b.thread() >> l.row_shift, lanes = 1 << l.row_shift;
  const W* weight = static_cast<const W*>(l.weight) + (first + mine) * matrix;
  for (int at = 4 * (b.thread() & (lanes - 1)); at < matrix; at += 4 * lanes) {
    const W* from = weight + at;
    float* to = tile + mine * l.stride + at;
    if constexpr (sizeof(W) == 1) {
      const int column = columns_first(l) ? at / l.inner : at % l.columns, step = columns_first(l) ? 0 : 1;
      const int turn = together % l.parents;
      int parent = mine % l.parents;
      for (int row = mine; row < rows; row += together, from += together * matrix, to += together * l.stride) {
        copy_scaled(from, l.weight_scale + parent * l.columns + column, step, to);
        parent += turn;
        if (parent >= l.parents) parent -= l.parents;
      }
    } else {
      for (int row = mine; row < rows; row += together, from += together * matrix, to += together * l.stride)
        copy_four(b, from, to);
    }
  }
  b.wait_copies();
}

}  // namespace cuda
}  // namespace capsedge
