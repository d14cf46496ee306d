// A routing layer as the kernels see it: the C interface's structure and values derived from it. Host code includes it
// as well.
#pragma once

#include "capsedge_cuda.h"

#ifdef __CUDACC__
#define CAPSEDGE_BOTH __host__ __device__ __forceinline__
#else
#define CAPSEDGE_BOTH inline
#endif

namespace capsedge {
namespace cuda {

constexpr int kWarp = 32;

// Division of numbers below 2^31 by a divisor that is known beforehand (Granlund and Montgomery 1994).
struct Divisor {
  uint32_t factor;  // 2^shift / by, rounded up
  int32_t shift;
  CAPSEDGE_BOTH int32_t operator()(int32_t number) const {
    return static_cast<int32_t>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * factor >> shift);
  }
};

// Memory of one unit (an image, or one of its output positions) between passes.
//   dynamic, attention, self-attention: query[parents][pose]
//   EM: mean[parents][pose], precision[parents][pose], offset[parents]
// and of one part of its children:
//   dynamic, attention, self-attention: sums[parents][pose]
//   over the children: sums[parents][pose], mass[parents], top[parents]
//   EM: mean[parents][pose], squares[parents][pose], mass[parents]
// Both have the same size, `floats`. [parents][pose] is [pose / 4][parents][4] but in generic kernels: lanes with a parent
// each then access neighbouring memory, four elements at a time, without conflicts of banks (place_of).
struct Layer : capsedge_cuda_routing {
  int32_t pose_size;   // of a child
  int32_t pose_elements;  // of a parent
  int32_t positions;   // of one image
  int32_t children;    // of one unit
  int32_t floats;
  int32_t room;        // floats from one unit or part to the next: a multiple of four
  int32_t parent_step, four_step;  // from a parent to the next, and from four of its elements to the next four
  int32_t splits;      // parts of a unit's children that go to different blocks
  int32_t part;        // children of one part
  int32_t group;       // lanes of one child
  int32_t tile;        // tiled: children whose weights are in shared memory at once
  int32_t stride;      // tiled: floats between the weights of two parents there
  int32_t row_shift;   // tiled: logarithm of the number of threads that copy the weights of one parent
  Divisor by_types, by_across;  // across: the cells of a row that a unit's children are in
  int64_t units;
  float* state;        // [units][floats]
  float* partial;      // [units][splits][floats]
  float* scratch;      // generic: [units][splits][kTile][parents]
  float* votes;        // kept: [units][children][columns / 4][parents][4]; or null, and every pass makes them
  int32_t round;       // floats of the votes of a block's groups in shared memory; 0 if votes are kept or not of vectors
};

// Index of a parent's element in a unit's or a part's memory.
CAPSEDGE_BOTH int place_of(const Layer& l, int parent, int element) {
  return parent * l.parent_step + (element >> 2) * l.four_step + (element & 3);
}

// Whether the weight of a child and a parent is [column][inner], not [inner][column].
CAPSEDGE_BOTH bool columns_first(const Layer& l) {
  return l.operation == CAPSEDGE_CUDA_DYNAMIC || l.operation == CAPSEDGE_CUDA_SELF_ATTENTION;
}

constexpr int kKeptChildren = 8;  // whose votes one block makes, where they are kept
constexpr int kTile = 8;  // children that the generic kernel takes at once
constexpr int kTileFloats = 10 * 1024;  // tiled: of shared memory, for weights
constexpr int kTileChildren = 8;        // tiled: at most

}  // namespace cuda
}  // namespace capsedge
