// The host's view of the kernels: numbers, names, parameters, and the choice among them for a layer.
#pragma once

#include "kernel_list.h"
#include "layer.h"

namespace capsedge {
namespace cuda {

constexpr int kThreads = 256;  // per block, at most

// Vote shapes with specialized kernels, by rows and columns.
enum class Shape { kGeneric, k4x4, k2x2, k1x16, k1x8 };

enum class Kernel : int {
#define CAPSEDGE_NUMBER(name, parameters, bounds, call) name,
  CAPSEDGE_KERNELS(CAPSEDGE_NUMBER)
#undef CAPSEDGE_NUMBER
  kNone
};
constexpr int kKernels = static_cast<int>(Kernel::kNone);

// By which the fat binary has it.
const char* name_of(Kernel kernel);

// A kernel with the types of what a launch gives it.
template <typename... Parameters>
struct Handle {
  Kernel kernel = Kernel::kNone;
};
using WholeKernel = Handle<Layer>;
using PassKernel = Handle<Layer, int>;  // and the iteration
using RowsKernel = Handle<const void*, void*, int64_t, int, float, int>;
using PlanesKernel = Handle<const void*, void*, int64_t, int, int64_t, float>;

struct Kernels {
  WholeKernel whole;  // for shapes with specialized kernels, not tiled
  PassKernel pass;
  WholeKernel begin;  // attention
  PassKernel finish;
  WholeKernel votes;  // kept votes; of vectors
};
// `q`: parents per lane.
Kernels kernels_of(const Layer& layer, Shape shape, int q, bool tiled);

// `type`: FLOAT or FLOAT16.
RowsKernel squash_rows_of(int32_t type);
PlanesKernel squash_planes_of(int32_t type);

}  // namespace cuda
}  // namespace capsedge
