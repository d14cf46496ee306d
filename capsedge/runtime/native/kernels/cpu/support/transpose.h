// Transposition of bytes: between the planes of an image and interleaved channels.
#pragma once

#include <cstdint>

namespace capsedge {

// y[column * y_stride + row] = x[row * x_stride + column]. x and y do not overlap.
void transpose_bytes(const uint8_t* x, int64_t x_stride, int64_t rows, int64_t columns, uint8_t* y, int64_t y_stride);

}  // namespace capsedge
