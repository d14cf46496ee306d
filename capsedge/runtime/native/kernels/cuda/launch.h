// Launching kernels, and the properties of the GPU that this requires.
#pragma once

#include <cstddef>

#include "kernels.h"

namespace capsedge {
namespace cuda {

struct Plan;

struct Grid {
  int64_t x;
  int y, threads;
  size_t shared;
  int cluster = 1;  // blocks in y that run at once and see each other's shared memory
};

// Multiprocessors of the current GPU; 0 or CAPSEDGE_CUDA_OLD_DRIVER without one.
int multiprocessors_here();

// Whether the current GPU runs such clusters; queried once for each kernel and grid.
bool clusters_run(Kernel kernel, const Grid& grid);

// Launches all passes of a layer whose memory has been assigned. Returns null, or what went wrong; so does launch.
const char* run_layer(const Plan& plan, void* stream);

// `arguments`: the addresses of what the kernel takes.
const char* launch_kernel(Kernel kernel, const Grid& grid, void* stream, void** arguments);

template <typename T>
struct Exactly {
  using Type = T;
};
template <typename... Parameters>
const char* launch(Handle<Parameters...> kernel, const Grid& grid, void* stream,
                   const typename Exactly<Parameters>::Type&... arguments) {
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return launch_kernel(kernel.kernel, grid, stream, addresses);
}

#ifdef CAPSEDGE_EMULATE
extern int emulated_multiprocessors;
#endif

}  // namespace cuda
}  // namespace capsedge
