// The host's view of the kernels, and the choice among them for a layer.
#pragma once

#include "layer.h"

namespace capsedge {
namespace cuda {

constexpr int kThreads = 256;  // per block, at most

// Vote shapes with specialized kernels, by rows and columns.
enum class Shape { kGeneric, k4x4, k2x2, k1x16, k1x8 };

using WholeKernel = void (*)(Layer);
using PassKernel = void (*)(Layer, int);  // and the iteration

struct Kernels {
  WholeKernel whole;  // for shapes with specialized kernels, not tiled
  PassKernel pass;
  WholeKernel begin;  // attention
  PassKernel finish;
  WholeKernel votes;  // kept votes; of vectors
};
// `q`: parents per lane.
Kernels kernels_of(const Layer& layer, Shape shape, int q, bool tiled);

template <typename T>
struct SquashKernels {
  void (*rows)(const T* x, T* y, int64_t rows, int size, float epsilon, int group);
  void (*planes)(const T* x, T* y, int64_t outer, int size, int64_t inner, float epsilon);
};
template <typename T>
SquashKernels<T> squash_kernels();  // of float and Half

}  // namespace cuda
}  // namespace capsedge
