// Y'CbCr to RGB in whole numbers, so that every machine computes the same: the equations of ITU-R BT.601-7 and BT.709-6 with
// coefficients in 1/65536, rounded to the nearest. Colours have half the resolution and are repeated, not interpolated.
#include "frames.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "failure.h"
#include "generated/limits.h"

namespace capsedge::libcapsedge {
namespace {

constexpr int kBits = 16;
constexpr int kHalf = 1 << (kBits - 1);

// What each value adds to red, green and blue.
struct Coefficients {
  int black, luma, red_v, green_u, green_v, blue_u;
};

int fixed(double value) { return static_cast<int>(std::lround(value * (1 << kBits))); }

Coefficients coefficients(const capsedge_frame& frame) {
  const bool hd = frame.matrix == CAPSEDGE_MATRIX_BT709, full = frame.range == CAPSEDGE_RANGE_FULL;
  const double red = hd ? 0.2126 : 0.299, blue = hd ? 0.0722 : 0.114, green = 1 - red - blue;
  const double luma = full ? 1.0 : 255.0 / 219, colour = full ? 1.0 : 255.0 / 224;
  return {full ? 0 : 16,
          fixed(luma),
          fixed(2 * (1 - red) * colour),
          fixed(-2 * blue * (1 - blue) / green * colour),
          fixed(-2 * red * (1 - red) / green * colour),
          fixed(2 * (1 - blue) * colour)};
}

uint8_t clipped(int value) { return static_cast<uint8_t>(std::clamp(value >> kBits, 0, 255)); }

void write_pixel(const Coefficients& c, int y, int u, int v, uint8_t* to) {
  const int luma = (y - c.black) * c.luma + kHalf;
  u -= 128, v -= 128;
  to[0] = clipped(luma + v * c.red_v);
  to[1] = clipped(luma + u * c.green_u + v * c.green_v);
  to[2] = clipped(luma + u * c.blue_u);
}

void check(bool right, const std::string& what, const std::string& expected) {
  if (!right) fail_usage(what, "Expected: " + expected + ".");
}

// Bytes from one row of a plane to the next; `least`: the bytes of a row.
int64_t stride_of(const capsedge_frame& frame, int plane, int64_t least) {
  const int64_t stride = frame.strides[plane];
  check(stride == 0 || stride >= least || stride <= -least,
        "frame.strides[" + std::to_string(plane) + "] is " + std::to_string(stride) + ".",
        "at least " + std::to_string(least) + " bytes, or 0 for no gaps");
  check(frame.planes[plane] != nullptr, "frame.planes[" + std::to_string(plane) + "] is null.", "the pixels of the frame");
  return stride == 0 ? least : stride;
}

void check_frame(const capsedge_frame& frame, const uint8_t* rgb, size_t bytes) {
  check(frame.format >= CAPSEDGE_FRAME_NV12 && frame.format <= CAPSEDGE_FRAME_BGR,
        "frame.format is " + std::to_string(frame.format) + ".", "a capsedge_frame_format");
  check(frame.matrix == CAPSEDGE_MATRIX_BT601 || frame.matrix == CAPSEDGE_MATRIX_BT709,
        "frame.matrix is " + std::to_string(frame.matrix) + ".", "a capsedge_frame_matrix");
  check(frame.range == CAPSEDGE_RANGE_LIMITED || frame.range == CAPSEDGE_RANGE_FULL,
        "frame.range is " + std::to_string(frame.range) + ".", "a capsedge_frame_range");
  const std::string size = std::to_string(frame.width) + "x" + std::to_string(frame.height);
  const bool sides = std::min(frame.width, frame.height) > 0 && std::max(frame.width, frame.height) <= limits::kImageSide;
  check(sides && int64_t{frame.width} * frame.height <= limits::kVideoPixels, "The frame has " + size + " pixels.",
        "1 to " + std::to_string(limits::kVideoPixels));
  const size_t needed = 3 * static_cast<size_t>(frame.width) * static_cast<size_t>(frame.height);
  check(rgb != nullptr && bytes >= needed, "rgb has room for " + std::to_string(rgb ? bytes : 0) + " bytes.",
        std::to_string(needed) + " for " + size + " pixels");
}

}  // namespace

void frame_to_rgb(const capsedge_frame& frame, uint8_t* rgb, size_t bytes) {
  check_frame(frame, rgb, bytes);
  const int64_t width = frame.width, pairs = (width + 1) / 2;
  const bool nv12 = frame.format == CAPSEDGE_FRAME_NV12, bgr = frame.format == CAPSEDGE_FRAME_BGR;
  const int64_t stride = stride_of(frame, 0, bgr ? 3 * width : nv12 ? width : 4 * pairs);
  const int64_t colour_stride = nv12 ? stride_of(frame, 1, 2 * pairs) : 0;
  const Coefficients c = coefficients(frame);
  for (int64_t row = 0; row < frame.height; ++row) {
    const uint8_t* from = frame.planes[0] + row * stride;
    uint8_t* to = rgb + row * width * 3;
    if (bgr) {
      for (int64_t x = 0; x < width; ++x) to[3 * x] = from[3 * x + 2], to[3 * x + 1] = from[3 * x + 1], to[3 * x + 2] = from[3 * x];
    } else if (nv12) {
      const uint8_t* colour = frame.planes[1] + row / 2 * colour_stride;
      for (int64_t x = 0; x < width; ++x) write_pixel(c, from[x], colour[x / 2 * 2], colour[x / 2 * 2 + 1], to + 3 * x);
    } else {
      for (int64_t x = 0; x < width; ++x) write_pixel(c, from[2 * x], from[x / 2 * 4 + 1], from[x / 2 * 4 + 3], to + 3 * x);
    }
  }
}

}  // namespace capsedge::libcapsedge
