#include "launch.h"

#include <map>
#include <mutex>
#include <tuple>

#include "plan.h"

namespace capsedge {
namespace cuda {

#ifdef CAPSEDGE_EMULATE
int emulated_multiprocessors = 4;
int multiprocessors_here() { return emulated_multiprocessors; }
bool clusters_run(WholeKernel, const Grid&) { return true; }
#else
cudaLaunchConfig_t configuration(const Grid& grid, void* stream, cudaLaunchAttribute* cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim.x = cluster->val.clusterDim.z = 1;
  cluster->val.clusterDim.y = static_cast<unsigned>(grid.cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = cluster;
  config.numAttrs = grid.cluster > 1;
  return config;
}

int multiprocessors_here() {
  int device = 0, count = 0, driver = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess)
    return count;
  const bool old = status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  cudaGetLastError();  // reported here, so that no later call reports it
  return old ? CAPSEDGE_CUDA_OLD_DRIVER : 0;
}

// Code that the driver compiled from PTX for older GPUs has no clusters, whatever GPU it runs on.
static bool ask_for_clusters(int device, WholeKernel kernel, const Grid& grid) {
  int known = 0, active = 0;
  cudaFuncAttributes made{};
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = configuration(grid, nullptr, &cluster);
  return cudaDeviceGetAttribute(&known, cudaDevAttrClusterLaunch, device) == cudaSuccess && known &&
         cudaFuncGetAttributes(&made, kernel) == cudaSuccess && made.ptxVersion >= 90 &&
         cudaOccupancyMaxActiveClusters(&active, kernel, &config) == cudaSuccess && active > 0;
}

bool clusters_run(WholeKernel kernel, const Grid& grid) {
  static std::mutex mutex;
  static std::map<std::tuple<int, WholeKernel, int, int, size_t>, bool> answers;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();  // the launch will report what is wrong
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [answer, asked] = answers.try_emplace({device, kernel, grid.cluster, grid.threads, grid.shared}, false);
  if (asked) {
    answer->second = ask_for_clusters(device, kernel, grid);
    cudaGetLastError();  // a refused query is an answer, too
  }
  return answer->second;
}
#endif

// Bytes of shared memory of a kernel per pass.
static size_t pass_floats(const Plan& plan) {
  const Layer& l = plan.layer;
  if (plan.shape == Shape::kGeneric) return 0;
  return plan.together ? static_cast<size_t>(l.tile) * l.parents * l.stride : static_cast<size_t>(l.floats) + l.round;
}

const char* run_layer(const Plan& plan, void* stream) {
  const Layer& l = plan.layer;
  if (plan.keeps) {
    const Grid kept{(l.children + kKeptChildren - 1) / kKeptChildren, static_cast<int>(l.units), kThreads, 0};
    if (const char* why = launch(plan.kernels.votes, kept, stream, l)) return why;
  }
  if (plan.whole) return launch(plan.kernels.whole, whole_grid(plan), stream, l);
  const int64_t blocks = plan.together ? (l.units + plan.together - 1) / plan.together : l.units;
  const Grid pass{blocks, l.splits, plan.threads, pass_floats(plan) * sizeof(float)}, unit{l.units, 1, kThreads, 0};
  if (l.operation == CAPSEDGE_CUDA_ATTENTION)
    if (const char* why = launch(plan.kernels.begin, unit, stream, l)) return why;
  for (int iteration = 0; iteration < l.iterations; ++iteration) {
    if (const char* why = launch(plan.kernels.pass, pass, stream, l, iteration)) return why;
    if (const char* why = launch(plan.kernels.finish, unit, stream, l, iteration)) return why;
  }
  return nullptr;
}

}  // namespace cuda
}  // namespace capsedge
