#include "transpose.h"

#include <algorithm>
#include <cstring>

namespace capsedge {

namespace {

// Every supported processor has 16-byte vectors, so this needs no level.
constexpr int kSide = 16;
typedef uint8_t Bytes __attribute__((vector_size(kSide)));

#ifdef __clang__
inline Bytes zip_low(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes zip_high(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#else
inline Bytes zip_low(Bytes a, Bytes b) {
  return __builtin_shuffle(a, b, Bytes{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
inline Bytes zip_high(Bytes a, Bytes b) {
  return __builtin_shuffle(a, b, Bytes{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
#endif

// Zipping the first half of the rows with the second half four times transposes them.
void transpose_block(const uint8_t* x, int64_t x_stride, uint8_t* y, int64_t y_stride) {
  Bytes a[kSide], b[kSide];
  for (int i = 0; i < kSide; ++i) std::memcpy(&a[i], x + i * x_stride, kSide);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kSide / 2; ++i) {
      b[2 * i] = zip_low(a[i], a[i + kSide / 2]);
      b[2 * i + 1] = zip_high(a[i], a[i + kSide / 2]);
    }
    for (int i = 0; i < kSide / 2; ++i) {
      a[2 * i] = zip_low(b[i], b[i + kSide / 2]);
      a[2 * i + 1] = zip_high(b[i], b[i + kSide / 2]);
    }
  }
  for (int i = 0; i < kSide; ++i) std::memcpy(y + i * y_stride, &a[i], kSide);
}

}  // namespace

void transpose_bytes(const uint8_t* x, int64_t x_stride, int64_t rows, int64_t columns, uint8_t* y,
                     int64_t y_stride) {
  if (rows == 1 && y_stride == 1) {
    std::memcpy(y, x, static_cast<size_t>(columns));
    return;
  }
  if (rows < kSide || columns < kSide) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) y[column * y_stride + row] = x[row * x_stride + column];
    return;
  }
  // The last block of a row or column overlaps the previous one, where it writes the same values.
  for (int64_t at = 0; at < rows; at += kSide) {
    const int64_t row = std::min(at, rows - kSide);
    for (int64_t next = 0; next < columns; next += kSide) {
      const int64_t column = std::min(next, columns - kSide);
      transpose_block(x + row * x_stride + column, x_stride, y + column * y_stride + row, y_stride);
    }
  }
}

}  // namespace capsedge
