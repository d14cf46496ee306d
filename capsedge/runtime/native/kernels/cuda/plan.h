// The plan for a layer: which kernels run, in how many blocks, on which memory.
#pragma once

#include "kernels.h"
#include "launch.h"

namespace capsedge {
namespace cuda {

struct Plan {
  Layer layer;
  Shape shape;
  Kernels kernels;
  int q;           // parents per lane
  bool whole;      // one kernel for all iterations; with several parts, by clusters
  int together;    // tiled: units per block; else 0
  int threads;
  bool keeps;      // votes of the first pass for the others
};

// Returns null, or what is wrong with the layer.
const char* check_layer(const capsedge_cuda_routing& layer);

// The layer has passed check_layer.
Plan make_plan(const capsedge_cuda_routing& layer);

// Bytes of workspace for this plan.
int64_t bytes_of(const Plan& plan);

// Bytes of workspace for this layer with this many images or fewer, wherever its memory is; no batch is planned for
// that.
int64_t most_bytes(const capsedge_cuda_routing& layer);

// Assigns the layer its parts of the workspace.
void place(Plan& plan, void* workspace);

// Bytes of shared memory of the kernel for all iterations.
Grid whole_grid(const Plan& plan);

bool aligned(const void* address, int64_t to);

}  // namespace cuda
}  // namespace capsedge
