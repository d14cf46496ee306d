// A CUDA runtime whose calls fail as told, under the kernels' launch code: prints each call after which an error is left
// for the next one to report. In place of libcudart and of the kernels' file
// (test_cuda_interface.py); needs no GPU.
#include <cstdio>
#include <string>

#include "cudart.h"
#include "device_code.h"
#include "launch.h"
#include "plan.h"

namespace {
using namespace capsedge::cuda;

std::string failing;          // the call that fails
int last = cudart::kSuccess;  // what cudaGetLastError has to tell
int answer(const char* call, int error) { return failing == call ? last = error : cudart::kSuccess; }
}  // namespace

extern "C" {
int cudaGetDevice(int* device) {
  *device = 0;
  return answer("cudaGetDevice", cudart::kInsufficientDriver);
}
int cudaDeviceGetAttribute(int* value, int, int) {
  *value = 1;
  return answer("cudaDeviceGetAttribute", 1);
}
int cudaDriverGetVersion(int*) { return last = 1; }  // asked where cudaGetDevice has failed
int cudaRuntimeGetVersion(int*) { return cudart::kSuccess; }
int cudaFuncGetAttributes(cudart::FunctionAttributes* attributes, const void*) {
  attributes->ptx_version = 90;
  return answer("cudaFuncGetAttributes", 98);
}
int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudart::Configuration*) {
  *clusters = 1;
  return answer("cudaOccupancyMaxActiveClusters", 912);
}
int cudaLaunchKernelExC(const cudart::Configuration*, const void*, void**) { return answer("cudaLaunchKernelExC", 9); }
int cudaGetLastError() {
  const int told = last;
  last = cudart::kSuccess;
  return told;
}
const char* cudaGetErrorString(int) { return "as told"; }
}

namespace capsedge {
namespace cuda {
const void* code_of(Kernel) { return &failing; }
Grid whole_grid(const Plan&) { return {}; }  // of plan.cpp, for layers that are not run here
const cudart::Functions* find_cudart(bool) {
#define CAPSEDGE_ADDRESS(name, result, parameters) cuda##name,
  static const cudart::Functions functions{CAPSEDGE_CUDART(CAPSEDGE_ADDRESS) nullptr, nullptr, nullptr};
  return &functions;
}
}  // namespace cuda
}  // namespace capsedge

int main() {
  const WholeKernel kernel{static_cast<Kernel>(0)};
  int grids = 0;
  for (const char* call : {"cudaGetDevice", "cudaDeviceGetAttribute", "cudaFuncGetAttributes",
                           "cudaOccupancyMaxActiveClusters", "cudaLaunchKernelExC"}) {
    failing = call;
    const Grid grid{1, 2, 32 * ++grids, 0, 2};  // not asked for before
    const auto left = [&](const char* by) {
      if (last != cudart::kSuccess) std::printf("%s leaves the error of %s\n", by, call);
      last = cudart::kSuccess;
    };
    multiprocessors_here();
    left("multiprocessors_here");
    clusters_run(kernel.kernel, grid);
    left("clusters_run");
    const char* why = launch(kernel, grid, nullptr, Layer{});
    left("launch");
    if (!why != (failing != "cudaLaunchKernelExC")) std::printf("launch says nothing of %s\n", call);
  }
}
