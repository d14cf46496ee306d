#include "launch.h"

#include <map>
#include <mutex>
#include <tuple>

#include "cudart.h"
#include "device_code.h"
#include "plan.h"
#ifdef CAPSEDGE_EMULATE
#include "emulate.h"
#include "table.h"
#endif

namespace capsedge {
namespace cuda {

#ifdef CAPSEDGE_EMULATE
int emulated_multiprocessors = 4;
int multiprocessors_here() { return emulated_multiprocessors; }
bool clusters_run(Kernel, const Grid&) { return true; }

const char* launch_kernel(Kernel kernel, const Grid& grid, void*, void** arguments) {
  Emulator::instance().run(static_cast<int>(grid.x), grid.y, grid.cluster, grid.threads, grid.shared,
                           [&] { kernel_table[static_cast<int>(kernel)](arguments); });
  return nullptr;
}
#else
namespace {

using cudart::Attribute;
using cudart::Configuration;
using cudart::Functions;

// `cluster` holds the attribute that the configuration points to.
Configuration configuration(const Grid& grid, void* stream, Attribute* cluster) {
  cluster->id = cudart::kClusterDimension;
  cluster->cluster = {1, static_cast<unsigned>(grid.cluster), 1};
  Configuration config{};
  config.grid = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), 1};
  config.block = {static_cast<unsigned>(grid.threads), 1, 1};
  config.shared_bytes = grid.shared;
  config.stream = stream;
  config.attributes = cluster;
  config.attribute_count = grid.cluster > 1;
  return config;
}

// Code that the driver compiled from PTX for older GPUs has no clusters, whatever GPU it runs on.
bool ask_for_clusters(const Functions& cuda, int device, const void* code, const Grid& grid) {
  int known = 0, active = 0;
  cudart::FunctionAttributes made{};
  Attribute cluster{};
  const Configuration config = configuration(grid, nullptr, &cluster);
  return cuda.DeviceGetAttribute(&known, cudart::kClusterLaunch, device) == cudart::kSuccess && known &&
         cuda.FuncGetAttributes(&made, code) == cudart::kSuccess && made.ptx_version >= 90 &&
         cuda.OccupancyMaxActiveClusters(&active, code, &config) == cudart::kSuccess && active > 0;
}

}  // namespace

int multiprocessors_here() {
  const Functions* const cuda = find_cudart();
  if (!cuda) return 0;
  int device = 0, count = 0, driver = 0;
  const int status = cuda->GetDevice(&device);
  if (status == cudart::kSuccess &&
      cuda->DeviceGetAttribute(&count, cudart::kMultiProcessorCount, device) == cudart::kSuccess)
    return count;
  const bool old = status == cudart::kInsufficientDriver && cuda->DriverGetVersion(&driver) == cudart::kSuccess && driver > 0;
  cuda->GetLastError();  // reported here, so that no later call reports it
  return old ? CAPSEDGE_CUDA_OLD_DRIVER : 0;
}

bool clusters_run(Kernel kernel, const Grid& grid) {
  static std::mutex mutex;
  static std::map<std::tuple<int, Kernel, int, int, size_t>, bool> answers;
  const Functions* const cuda = find_cudart();
  const void* const code = code_of(kernel);
  int device = 0;
  if (!cuda || !code) return false;
  if (cuda->GetDevice(&device) != cudart::kSuccess) {
    cuda->GetLastError();  // the launch will report what is wrong
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [answer, asked] = answers.try_emplace({device, kernel, grid.cluster, grid.threads, grid.shared}, false);
  if (asked) {
    answer->second = ask_for_clusters(*cuda, device, code, grid);
    cuda->GetLastError();  // a refused query is an answer, too
  }
  return answer->second;
}

const char* launch_kernel(Kernel kernel, const Grid& grid, void* stream, void** arguments) {
  const Functions* const cuda = find_cudart();
  const void* const code = code_of(kernel);
  if (!cuda || !code) return "the kernels are not loaded: call capsedge_cuda_load first";
  Attribute cluster{};
  const Configuration config = configuration(grid, stream, &cluster);
  const int status = cuda->LaunchKernelExC(&config, code, arguments);
  if (status == cudart::kSuccess) return nullptr;
  cuda->GetLastError();  // reported here, so that no later call reports it
  return cuda->GetErrorString(status);
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
