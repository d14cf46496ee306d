#include "runtime.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <numeric>
#include <sstream>

namespace ptx {
namespace {

constexpr int kRegistersOfWarp = 256;  // given out so many at a time
constexpr int kSystemShared = 1024;    // of each block, from compute capability 8.0 on

// Lines of name, registers, bytes spilled: what ptxas reports.
void read_resources(const std::string& path, Module& module) {
  std::ifstream file(path);
  std::string name;
  int registers, spills;
  while (file >> name >> registers >> spills) {
    const auto found = module.kernels.find(name);
    if (found == module.kernels.end()) continue;
    found->second.registers = registers;
    found->second.spills = spills;
  }
}

// Lines of kernel, first line, last line, instructions, runs by warps: of each block of the PTX.
void write_executed() {
  std::ofstream file(std::getenv("CAPSEDGE_PTX_EXECUTED"), std::ios::app);
  std::ostringstream text;  // at once: several processes may write
  for (const auto& [name, kernel] : Runtime::instance().module.kernels)
    for (size_t b = 0; b < kernel.blocks.size(); ++b) {
      const bool last = b + 1 == kernel.blocks.size();
      const size_t end = last ? kernel.first_line + kernel.source.size() : kernel.blocks[b + 1].line;
      const uint32_t* const kinds = kernel.blocks[b].kinds;
      text << name << ' ' << kernel.blocks[b].line << ' ' << end - 1 << ' ' << std::accumulate(kinds, kinds + kKinds, 0u) << ' '
           << (b < kernel.executed.size() ? kernel.executed[b] : 0) << '\n';
    }
  file << text.str();
}

}  // namespace

Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime();  // libraries unregister their code when the process is about to end
  return *runtime;
}

int& Runtime::gpu() {
  thread_local int current = 0;
  return current;
}

Runtime::Runtime() {
  const char* folder = std::getenv("CAPSEDGE_PTX");
  if (!folder) return;
  std::ifstream file(std::string(folder) + "/kernels.ptx");
  std::stringstream text;
  text << file.rdbuf();
  try {
    module = parse(text.str());
  } catch (const std::exception& error) {
    std::cerr << "libcudart of the tests: " << error.what() << std::endl;
    return;
  }
  read_resources(std::string(folder) + "/resources.txt", module);
  const Limits* known = limits_of(module.architecture);
  if (!known) return;
  static Limits own;
  own = *known;
  if (const char* count = std::getenv("CAPSEDGE_PTX_MULTIPROCESSORS")) own.multiprocessors = std::atoi(count);
  machine.limits = &own;
  if (const char* count = std::getenv("CAPSEDGE_PTX_DEVICES")) gpus = std::atoi(count);
  machine.checks = !std::getenv("CAPSEDGE_PTX_UNCHECKED");
  if (std::getenv("CAPSEDGE_PTX_EXECUTED")) std::atexit(write_executed);
}

std::shared_ptr<Stream> Runtime::stream(cudaStream_t handle) {
  if (legacy(handle)) {
    std::shared_ptr<Stream>& own = legacy_[gpu()];
    if (!own) own = std::make_shared<Stream>();
    own->gpu = gpu();
    return own;
  }
  if (handle == cudaStreamPerThread) return nullptr;  // nothing here uses it
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second;
}

cudaStream_t Runtime::create_stream(bool blocking) {
  auto made = std::make_shared<Stream>();
  made->blocking = blocking;
  made->gpu = gpu();
  const auto handle = reinterpret_cast<cudaStream_t>(made.get());
  streams_[handle] = std::move(made);
  return handle;
}

cudaError_t Runtime::destroy_stream(cudaStream_t handle) {
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
  drain(found->second, found->second->submitted);
  streams_.erase(found);
  return cudaSuccess;
}

cudaError_t Runtime::submit(cudaStream_t handle, Work work) {
  const std::shared_ptr<Stream> own = stream(handle);
  if (!own) return cudaErrorInvalidResourceHandle;
  if (own->capture) {
    if (own->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    own->capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> first;
  for (const auto& [name, other] : streams_) {
    if (!other->blocking || !legacy(handle) || other->gpu != own->gpu) continue;
    if (other->capture) {  // the legacy stream would wait for what is not running
      other->capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
    first.emplace_back(other, other->submitted);
  }
  if (const auto found = legacy_.find(own->gpu); !legacy(handle) && own->blocking && found != legacy_.end())
    first.emplace_back(found->second, found->second->submitted);
  own->queue.push_back([this, first = std::move(first), work = std::move(work)] {
    for (const auto& [other, position] : first) drain(other, position);
    work();
  });
  ++own->submitted;
  return cudaSuccess;
}

void Runtime::drain(const std::shared_ptr<Stream>& stream, uint64_t position) {
  while (stream->completed < position && !stream->queue.empty()) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    ++stream->completed;
    if (sticky) continue;
    try {
      work();
    } catch (const Fault& error) {
      fault = error.what();
      std::cerr << "PTX: " << fault << std::endl;
      sticky = static_cast<cudaError_t>(error.code);
    }
  }
}

void Runtime::drain_all() {
  for (const auto& [number, stream] : legacy_) drain(stream, stream->submitted);
  for (const auto& [name, stream] : streams_) drain(stream, stream->submitted);
}

cudaError_t Runtime::refuse_in_capture(bool any_thread) {
  bool found = false;
  for (const auto& [name, stream] : streams_) {
    Capture* const capture = stream->capture.get();
    if (!capture) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    if (!any_thread && (capture->mode == cudaStreamCaptureModeRelaxed || (capture->mode == cudaStreamCaptureModeThreadLocal && !own)))
      continue;
    capture->invalid = found = true;
  }
  return found ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t Runtime::begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (legacy(handle)) return cudaErrorStreamCaptureUnsupported;
  const std::shared_ptr<Stream> own = stream(handle);
  if (!own) return cudaErrorInvalidResourceHandle;
  if (own->capture) return cudaErrorIllegalState;
  own->capture.reset(new Capture{{}, mode, std::this_thread::get_id()});
  return cudaSuccess;
}

cudaError_t Runtime::end_capture(cudaStream_t handle, std::unique_ptr<std::vector<Work>>& work) {
  const std::shared_ptr<Stream> own = stream(handle);
  if (!own) return cudaErrorInvalidResourceHandle;
  if (!own->capture) return cudaErrorIllegalState;
  if (own->capture->mode != cudaStreamCaptureModeRelaxed && own->capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  const std::unique_ptr<Capture> ended = std::move(own->capture);
  if (ended->invalid) return cudaErrorStreamCaptureInvalidated;
  work = std::make_unique<std::vector<Work>>(std::move(ended->work));
  return cudaSuccess;
}

int resident_blocks(const Registered& function, int threads, size_t shared) {
  const Limits& limits = *Runtime::instance().machine.limits;
  const int warps = (threads + kLanes - 1) / kLanes;
  const int of_warp = (function.kernel->registers * kLanes + kRegistersOfWarp - 1) / kRegistersOfWarp * kRegistersOfWarp;
  const int system = limits.architecture >= 80 ? kSystemShared : 0;
  const int used = (static_cast<int>(shared) + 127) / 128 * 128 + system;
  int most = std::min(limits.blocks, limits.warps / warps);
  if (of_warp) most = std::min(most, limits.registers / of_warp / warps);
  return used ? std::min(most, limits.shared / used) : most;
}

cudaError_t check_launch(const Registered& function, const cudaLaunchConfig_t& config, void** arguments, Launch& launch) {
  const Limits& limits = *Runtime::instance().machine.limits;
  if (!function.kernel) return cudaErrorNoKernelImageForDevice;
  const Kernel& kernel = *function.kernel;
  const dim3 grid = config.gridDim, block = config.blockDim;
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (!threads || threads > 1024) return cudaErrorInvalidConfiguration;
  if (threads > static_cast<uint64_t>(kernel.most_threads)) return cudaErrorInvalidValue;
  if (grid.z > 1 || block.y > 1 || block.z > 1) return cudaErrorNotSupported;  // of this library: no kernel here does
  if (config.dynamicSmemBytes > static_cast<size_t>(std::min(function.shared_opt_in, limits.shared_opt_in))) return cudaErrorInvalidValue;
  launch.cluster = 1;
  for (unsigned k = 0; k < config.numAttrs; ++k) {
    if (config.attrs[k].id != cudaLaunchAttributeClusterDimension) return cudaErrorNotSupported;
    const auto size = config.attrs[k].val.clusterDim;
    if (!limits.clusters()) return cudaErrorNotSupported;
    if (size.x != 1 || size.z != 1 || size.y < 1 || grid.y % size.y) return cudaErrorInvalidClusterSize;
    if (size.y > (function.large_clusters ? 16u : 8u)) return cudaErrorInvalidClusterSize;
    launch.cluster = static_cast<int>(size.y);
  }
  launch.kernel = &kernel;
  launch.grid = {grid.x, grid.y, 1};
  launch.threads = static_cast<int>(threads);
  launch.shared = static_cast<uint32_t>(config.dynamicSmemBytes);
  if (resident_blocks(function, launch.threads, launch.shared) < 1) return cudaErrorLaunchOutOfResources;
  launch.arguments.resize(kernel.parameter_bytes);
  for (size_t k = 0; arguments && k < kernel.parameters.size(); ++k)
    std::memcpy(launch.arguments.data() + kernel.parameters[k].offset, arguments[k], kernel.parameters[k].size);
  return cudaSuccess;
}

}  // namespace ptx
