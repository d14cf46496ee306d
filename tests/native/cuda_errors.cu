// A CUDA runtime whose calls fail as told, under the kernels' launch code: prints each call after which an error is left
// for the next one to report. Built with nvcc and without its runtime (test_cuda_interface.py); needs no GPU.
#include <cstdio>
#include <string>

#include "launch.h"
#include "plan.h"

namespace {
std::string failing;             // the call that fails
cudaError_t last = cudaSuccess;  // what cudaGetLastError has to tell
cudaError_t answer(const char* call, cudaError_t error) {
  return failing == call ? last = error : cudaSuccess;
}
}  // namespace

// Under other names here, as nvcc knows all of the runtime's.
#define NAMED(name) asm(#name)
extern "C" {
cudaError_t get_device(int*) NAMED(cudaGetDevice);
cudaError_t get_device(int* device) {
  *device = 0;
  return answer("cudaGetDevice", cudaErrorInsufficientDriver);
}
cudaError_t get_attribute(int*, cudaDeviceAttr, int) NAMED(cudaDeviceGetAttribute);
cudaError_t get_attribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return answer("cudaDeviceGetAttribute", cudaErrorInvalidValue);
}
cudaError_t get_version(int*) NAMED(cudaDriverGetVersion);  // asked where cudaGetDevice has failed
cudaError_t get_version(int*) { return last = cudaErrorInvalidValue; }
cudaError_t get_function(cudaFuncAttributes*, const void*) NAMED(cudaFuncGetAttributes);
cudaError_t get_function(cudaFuncAttributes* attributes, const void*) {
  attributes->ptxVersion = 90;
  return answer("cudaFuncGetAttributes", cudaErrorInvalidDeviceFunction);
}
cudaError_t get_clusters(int*, const void*, const cudaLaunchConfig_t*) NAMED(cudaOccupancyMaxActiveClusters);
cudaError_t get_clusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return answer("cudaOccupancyMaxActiveClusters", cudaErrorInvalidClusterSize);
}
cudaError_t launch_kernel(const cudaLaunchConfig_t*, const void*, void**) NAMED(cudaLaunchKernelExC);
cudaError_t launch_kernel(const cudaLaunchConfig_t*, const void*, void**) {
  return answer("cudaLaunchKernelExC", cudaErrorInvalidConfiguration);
}
cudaError_t get_last() NAMED(cudaGetLastError);
cudaError_t get_last() {
  const cudaError_t told = last;
  last = cudaSuccess;
  return told;
}
const char* get_words(cudaError_t) NAMED(cudaGetErrorString);
const char* get_words(cudaError_t) { return "as told"; }
// What nvcc's own code calls before main and after it.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
}

namespace capsedge {
namespace cuda {
Grid whole_grid(const Plan&) { return {}; }  // of plan.cu, for layers that are not run here
}  // namespace cuda
}  // namespace capsedge

static void kernel(capsedge::cuda::Layer) {}

int main() {
  using namespace capsedge::cuda;
  int grids = 0;
  for (const char* call : {"cudaGetDevice", "cudaDeviceGetAttribute", "cudaFuncGetAttributes",
                           "cudaOccupancyMaxActiveClusters", "cudaLaunchKernelExC"}) {
    failing = call;
    const Grid grid{1, 2, 32 * ++grids, 0, 2};  // not asked for before
    const auto left = [&](const char* by) {
      if (last != cudaSuccess) std::printf("%s leaves the error of %s\n", by, call);
      last = cudaSuccess;
    };
    multiprocessors_here();
    left("multiprocessors_here");
    clusters_run(kernel, grid);
    left("clusters_run");
    const char* why = launch(kernel, grid, nullptr, Layer{});
    left("launch");
    if (!why != (failing != "cudaLaunchKernelExC")) std::printf("launch says nothing of %s\n", call);
  }
}
