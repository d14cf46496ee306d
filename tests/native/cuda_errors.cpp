// A CUDA runtime whose calls fail as told, under the kernels' launch code: prints each call after which an error is left
// for the next one to report. Linked in place of libcudart (test_cuda_interface.py); needs no GPU.
#include <cstdio>
#include <string>

#include "cudart_abi.h"
#include "launch.h"
#include "plan.h"
#include "table.h"

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
const void* const kernel_table[kKernels] = {&failing};  // the first one is asked for
Grid whole_grid(const Plan&) { return {}; }             // of plan.cpp, for layers that are not run here
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
