// Launching kernels, and the properties of the GPU that this requires.
#pragma once

#ifndef CAPSEDGE_EMULATE
#include <cuda_runtime.h>
#endif

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
bool clusters_run(WholeKernel kernel, const Grid& grid);

// Launches all passes of a layer whose memory has been assigned. Returns null, or what went wrong; so does launch.
const char* run_layer(const Plan& plan, void* stream);

#ifdef CAPSEDGE_EMULATE
extern int emulated_multiprocessors;

template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Grid& grid, void*, const Arguments&... arguments) {
  Emulator::instance().run(static_cast<int>(grid.x), grid.y, grid.cluster, grid.threads, grid.shared,
                           [&] { kernel(arguments...); });
  return nullptr;
}
#else
// `cluster` holds the attribute that the configuration points to.
cudaLaunchConfig_t configuration(const Grid& grid, void* stream, cudaLaunchAttribute* cluster);

template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Grid& grid, void* stream, const Arguments&... arguments) {
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = configuration(grid, stream, &cluster);
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();  // reported here, so that no later call reports it
  return cudaGetErrorString(status);
}
#endif

}  // namespace cuda
}  // namespace capsedge
