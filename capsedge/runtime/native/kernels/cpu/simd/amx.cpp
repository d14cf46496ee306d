// x86 with AMX in addition to AVX-512 VNNI, for different sums of a convolution. A tile has 16 rows of 64 bytes, and
// one instruction multiplies the windows of 16 positions with the weights of 16 channels.
#define CAPSEDGE_LEVEL amx
#define CAPSEDGE_AVX512 1
#define CAPSEDGE_VNNI 1
#define CAPSEDGE_TILES 1
#define CAPSEDGE_WIDTH 16
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "conv.h"

namespace capsedge {
namespace amx {

enum { kRows = kConvPositions, kBytes = 64, kRowOfWeights = kDot * kConvChannels, kRowOfSums = 4 * kConvChannels };
enum { kStage = 16 };  // number of 64-byte chunks that are laid out at once: they stay in the first-level cache
static_assert(kRows == 16 && kConvChannels == 4 * W, "tiles of sums are 16 by 16, four beside each other");

// The tile shapes in the processor's format.
struct alignas(64) Shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static const Shapes kShapes = {
    1, 0, {}, {kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes},
    {kRows, kRows, kRows, kRows, kRows, kRows, kRows, kRows}};

// The intrinsics do not tell the compiler that they read memory.
CAPSEDGE_INLINE void memory_is_read() { __asm__ volatile("" ::: "memory"); }

// Position of the next bytes of a window.
struct Place {
  int segment, at;
};

// Parts of segments that make up 64 bytes of a window: the mask selects bytes from `offset` on.
struct Chunk {
  int parts;
  int offset[kBytes / kDot];
  __mmask64 mask[kBytes / kDot];
};
static Chunk next_chunk(const ConvPass& pass, int bytes, Place& place) {
  Chunk chunk;
  chunk.parts = 0;
  for (int column = 0; column < bytes; ++chunk.parts) {
    const int left = pass.length - place.at, length = left < bytes - column ? left : bytes - column;
    chunk.offset[chunk.parts] = pass.offsets[place.segment] + place.at - column;
    chunk.mask[chunk.parts] = (~0ull >> (kBytes - length)) << column;
    column += length;
    place.at += length;
    if (place.at == pass.length) ++place.segment, place.at = 0;
  }
  return chunk;
}

// The next bytes of some windows side by side, [chunk][rows][64]; the last chunk ends with zeros. Rows beyond the
// windows, and their sums, are undefined.
static void lay_out(const ConvPass& pass, int first, int count, int bytes, int rows, Place& place, uint8_t* to) {
  const uint8_t* input = static_cast<const uint8_t*>(pass.input);
  for (; bytes > 0; bytes -= kBytes, to += rows * kBytes) {
    const Chunk chunk = next_chunk(pass, bytes < kBytes ? bytes : kBytes, place);
    const int32_t* windows = pass.windows + first;
    if (chunk.parts == 1 && chunk.mask[0] == ~0ull) {
      for (int row = 0; row < count; ++row)
        _mm512_store_si512(to + row * kBytes, _mm512_loadu_si512(input + chunk.offset[0] + windows[row]));
      continue;
    }
    for (int row = 0; row < count; ++row) {
      const uint8_t* window = input + windows[row];
      __m512i x = _mm512_maskz_loadu_epi8(chunk.mask[0], window + chunk.offset[0]);
      for (int part = 1; part < chunk.parts; ++part)
        x = _mm512_mask_loadu_epi8(x, chunk.mask[part], window + chunk.offset[part]);
      _mm512_store_si512(to + row * kBytes, x);
    }
  }
}

// Loads the sums of 16 positions, whose rows are `row_bytes` apart or all the same.
struct Sums {
  const int32_t* from;
  int from_row;
  int32_t* to;
};

// 16 positions and 64 channels. Tiles 0 to 3: sums. 4: windows. 5 and 6: weights.
static void add_sixteen(const uint8_t* x, int chunks, const int8_t* weight, const Sums& sums) {
  memory_is_read();
  _tile_loadd(0, sums.from, sums.from_row);
  _tile_loadd(1, sums.from + W, sums.from_row);
  _tile_loadd(2, sums.from + 2 * W, sums.from_row);
  _tile_loadd(3, sums.from + 3 * W, sums.from_row);
  for (; chunks > 0; --chunks, x += kRows * kBytes, weight += kBytes * kConvChannels) {
    _tile_loadd(4, x, kBytes);
    _tile_loadd(5, weight, kRowOfWeights);
    _tile_dpbusd(0, 4, 5);
    _tile_loadd(6, weight + kDot * W, kRowOfWeights);
    _tile_dpbusd(1, 4, 6);
    _tile_loadd(5, weight + 2 * kDot * W, kRowOfWeights);
    _tile_dpbusd(2, 4, 5);
    _tile_loadd(6, weight + 3 * kDot * W, kRowOfWeights);
    _tile_dpbusd(3, 4, 6);
  }
  _tile_stored(0, sums.to, kRowOfSums);
  _tile_stored(1, sums.to + W, kRowOfSums);
  _tile_stored(2, sums.to + 2 * W, kRowOfSums);
  _tile_stored(3, sums.to + 3 * W, kRowOfSums);
}

// 32 positions and 32 channels, so weights are loaded once for two tiles. 4 and 5: windows. 6 and 7: weights.
static void add_thirty_two(const uint8_t* x, int chunks, const int8_t* weight, const Sums& sums) {
  const int32_t* second = sums.from + sums.from_row / 4 * kRows;
  memory_is_read();
  _tile_loadd(0, sums.from, sums.from_row);
  _tile_loadd(1, sums.from + W, sums.from_row);
  _tile_loadd(2, second, sums.from_row);
  _tile_loadd(3, second + W, sums.from_row);
  for (; chunks > 0; --chunks, x += 2 * kRows * kBytes, weight += kBytes * kConvChannels) {
    _tile_loadd(6, weight, kRowOfWeights);
    _tile_loadd(4, x, kBytes);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, weight + kDot * W, kRowOfWeights);
    _tile_dpbusd(1, 4, 7);
    _tile_loadd(5, x + kRows * kBytes, kBytes);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  int32_t* to = sums.to + kRows * kConvChannels;
  _tile_stored(0, sums.to, kRowOfSums);
  _tile_stored(1, sums.to + W, kRowOfSums);
  _tile_stored(2, to, kRowOfSums);
  _tile_stored(3, to + W, kRowOfSums);
}

// Up to 32 positions. `sums` has enough rows to fill the tiles.
static void add_products(const ConvPass& pass, int first, int count, int32_t* sums) {
  alignas(64) uint8_t laid_out[kStage * 2 * kRows * kBytes];
  const int64_t total = static_cast<int64_t>(pass.segments) * pass.length;
  const int rows = count > kRows ? 2 * kRows : kRows;
  const int8_t* weight = pass.weight;
  Sums where = pass.start ? Sums{pass.start, 0, sums} : Sums{sums, kRowOfSums, sums};
  Place place{0, 0};
  for (int64_t begin = 0; begin < total; begin += kStage * kBytes) {
    const int bytes = static_cast<int>(total - begin < kStage * kBytes ? total - begin : kStage * kBytes);
    const int chunks = (bytes + kBytes - 1) / kBytes;
    lay_out(pass, first, count, bytes, rows, place, laid_out);
    if (rows == kRows) {
      add_sixteen(laid_out, chunks, weight, where);
    } else {
      add_thirty_two(laid_out, chunks, weight, where);
      add_thirty_two(laid_out, chunks, weight + 2 * kDot * W, {where.from + 2 * W, where.from_row, where.to + 2 * W});
    }
    weight += chunks * kBytes * kConvChannels;
    where = {sums, kRowOfSums, sums};
  }
}

static void convolve(const ConvPass& pass) {
  _tile_loadconfig(&kShapes);
  for (int first = 0; first < pass.positions; first += 2 * kRows) {
    const int left = pass.positions - first, count = left < 2 * kRows ? left : 2 * kRows;
    int32_t* out = pass.sums + static_cast<int64_t>(first) * kConvChannels;
    if (count % kRows == 0) {
      add_products(pass, first, count, out);
      continue;
    }
    alignas(64) int32_t whole[2 * kRows * kConvChannels];  // rows beyond the last position as well
    const size_t bytes = static_cast<size_t>(count) * kRowOfSums;
    if (!pass.start) __builtin_memcpy(whole, out, bytes);
    add_products(pass, first, count, whole);
    __builtin_memcpy(out, whole, bytes);
  }
  _tile_release();
}

}  // namespace amx

extern const ConvKernels kConv_amx;
const ConvKernels kConv_amx = {amx::kDot, amx::kConvPositions, amx::kConvChannels, amx::convolve, amx::requantize};

}  // namespace capsedge
