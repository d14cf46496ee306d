// The functions of libcudart that capsedge calls, and those that nvcc's code calls. Errors are those that CUDA documents
// for the call; a kernel's fault is found when its work is waited for, and then every call returns it.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "runtime.h"

using namespace ptx;

namespace {

Runtime& runtime() { return Runtime::instance(); }

thread_local cudaError_t last = cudaSuccess;
std::map<void*, std::unique_ptr<Event>> events;
using Graph = std::vector<Work>;
std::map<void*, std::shared_ptr<Graph>> graphs, executables;
std::set<char*> libraries;  // of kernels, by addresses that nothing else has
constexpr uint32_t kFatBinary = 0xba55ed50u;  // what nvcc's files begin with
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

cudaError_t made(cudaError_t status) {
  if (status) last = status;
  return status;
}

// For the time of a call; `status` is what it has to return at once, if anything.
struct Call {
  explicit Call(const char* name, bool device = true) : lock(runtime().mutex) {
    const auto refused = runtime().refusals.find(name);
    if (refused != runtime().refusals.end() && refused->second.first-- == 0) {
      status = static_cast<cudaError_t>(refused->second.second);
      runtime().refusals.erase(refused);
    } else if (device && !runtime().has_device()) {
      status = cudaErrorNoDevice;
    } else if (device) {
      status = runtime().sticky;
    }
  }
  std::lock_guard<std::recursive_mutex> lock;
  cudaError_t status = cudaSuccess;
};
#define CALL(...)                        \
  const Call call(__func__ __VA_ARGS__); \
  if (call.status) return made(call.status)

Allocation* known(const void* address, size_t bytes) {
  Allocation* const found = runtime().machine.memory.find(reinterpret_cast<uint64_t>(address));
  return found && found->contains(reinterpret_cast<uint64_t>(address), bytes) ? found : nullptr;
}
bool in_allocation(const void* address) { return runtime().machine.memory.find(reinterpret_cast<uint64_t>(address)); }

cudaError_t allocate(void** to, size_t bytes, bool device) {
  if (const cudaError_t status = runtime().refuse_in_capture(false)) return status;
  if (!to) return cudaErrorInvalidValue;
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  if (device && bytes > free) return cudaErrorMemoryAllocation;
  Allocation* const found = runtime().machine.memory.allocate(bytes, device, Runtime::gpu());
  if (!found) return cudaErrorMemoryAllocation;
  *to = found->host();
  return cudaSuccess;
}
cudaError_t release(void* address, bool device) {
  if (const cudaError_t status = runtime().refuse_in_capture(false)) return status;
  if (!address) return cudaSuccess;
  runtime().drain_all();  // both functions wait for the device
  const Allocation* const found = runtime().machine.memory.find(reinterpret_cast<uint64_t>(address));
  if (!found || found->device != device || found->host() != address) return cudaErrorInvalidValue;
  runtime().machine.memory.release(found->address);
  return runtime().sticky;
}

// Whether a copy's ends are what its kind says, and inside what they belong to.
cudaError_t check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (!bytes) return cudaSuccess;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  for (const auto& [address, device] : {std::pair<const void*, bool>{to, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice},
                                        {from, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice}}) {
    if (!address) return cudaErrorInvalidValue;
    const Allocation* const found = known(address, bytes);
    if (in_allocation(address) && !found) return cudaErrorInvalidValue;  // longer than the rest of it
    if (device && !found) return cudaErrorInvalidValue;
    if (kind != cudaMemcpyDefault && !device && found && found->device) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

void copy_now(void* to, const void* from, size_t bytes) {
  Allocation* const target = known(to, bytes);
  const Allocation* const source = known(from, bytes);
  if ((in_allocation(to) && !target) || (in_allocation(from) && !source)) throw Fault(kIllegalAddress, "a copy of memory that has been freed");
  std::memcpy(to, from, bytes);
  if (!target) return;
  uint8_t* const written = target->written.data() + (static_cast<char*>(to) - target->host());
  if (source) std::memmove(written, source->written.data() + (static_cast<const char*>(from) - source->host()), bytes);
  else std::memset(written, 1, bytes);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t status = check_copy(to, from, bytes, kind)) return status;
  const std::shared_ptr<Stream> own = runtime().stream(stream);
  if (!own) return cudaErrorInvalidResourceHandle;
  const bool captures = own->capture != nullptr, from_pageable = !known(from, bytes), to_pageable = !known(to, bytes);
  if (from_pageable && !captures) {  // it is read before the call returns
    auto kept = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    if (const cudaError_t status = runtime().submit(stream, [=] { copy_now(to, kept->data(), bytes); })) return status;
  } else if (const cudaError_t status = runtime().submit(stream, [=] { copy_now(to, from, bytes); })) {
    return status;
  }
  if (to_pageable && !captures) runtime().drain(own, own->submitted);  // it is there when the call returns
  return runtime().sticky;
}

cudaError_t start(const void* function, const cudaLaunchConfig_t& config, void** arguments) {
  const auto found = runtime().functions.find(function);
  if (found == runtime().functions.end()) return cudaErrorInvalidDeviceFunction;
  auto launch = std::make_shared<Launch>();
  if (const cudaError_t status = check_launch(found->second, config, arguments, *launch)) return status;
  const std::shared_ptr<Stream> stream = runtime().stream(config.stream);
  const int gpu = Runtime::gpu();
  if (!stream || stream->gpu != gpu) return cudaErrorInvalidResourceHandle;
  return runtime().submit(config.stream, [launch, gpu] {
    Launch own = *launch;  // a graph runs it again
    runtime().machine.gpu = gpu;
    runtime().machine.run(own);
    own.arguments.clear();
    runtime().done.push_back(std::move(own));
  });
}

cudaLaunchConfig_t configured(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return config;
}

}  // namespace

extern "C" {

// What the tests ask for beyond CUDA.
const char* ptx_fault() { return runtime().fault.c_str(); }
// The call of this name after so many others fails once.
void ptx_refuse(const char* call, int after, int code) { runtime().refusals[call] = {after, code}; }
int ptx_refusals_left() { return static_cast<int>(runtime().refusals.size()); }
// The bytes of memory that each GPU has.
void ptx_memory(unsigned long long bytes) { runtime().memory = bytes; }
void ptx_reset() { runtime().done.clear(); }
int ptx_kernels() { return static_cast<int>(runtime().module.kernels.size()); }
// Every launch since the last reset, as JSON.
const char* ptx_counts() {
  static std::string text;
  std::ostringstream out;
  out << '[';
  const char* comma = "";
  for (const Launch& launch : runtime().done) {
    const Counts& c = launch.counts;
    out << comma << "{\"kernel\": \"" << launch.kernel->name << "\", \"grid\": [" << launch.grid.x << ", " << launch.grid.y
        << "], \"threads\": " << launch.threads << ", \"cluster\": " << launch.cluster << ", \"shared\": " << launch.shared
        << ", \"registers\": " << launch.kernel->registers << ", \"spills\": " << launch.kernel->spills;
    for (const auto& [name, values] : {std::pair<const char*, const std::array<uint64_t, kKinds>&>{"warps", c.issued}, {"lanes", c.lanes}}) {
      out << ", \"" << name << "\": {";
      for (int k = 0; k < kKinds; ++k) out << (k ? ", " : "") << '"' << kind_names[k] << "\": " << values[static_cast<size_t>(k)];
      out << '}';
    }
    out << ", \"fp32\": " << c.fp32 << ", \"global_requests\": " << c.global_requests << ", \"sectors\": " << c.sectors
        << ", \"shared_requests\": " << c.shared_requests << ", \"turns\": " << c.turns << ", \"phased_turns\": " << c.phased_turns
        << ", \"least_turns\": " << c.least_turns
        << ", \"divergent\": " << c.divergent << '}';
    comma = ", ";
  }
  text = out.str() + ']';
  return text.c_str();
}

// nvcc's code.
void** __cudaRegisterFatBinary(void* binary) { return static_cast<void**>(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  const std::lock_guard<std::recursive_mutex> lock(runtime().mutex);
  const auto found = runtime().module.kernels.find(name);
  runtime().functions[host] = {name, found == runtime().module.kernels.end() ? nullptr : &found->second};
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  CALL();
  return made(start(kernel, configured(grid, block, shared, stream), arguments));
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return made(cudaErrorMissingConfiguration);
  const Configuration own = configurations.back();
  configurations.pop_back();
  *grid = own.grid;
  *block = own.block;
  *shared = own.shared;
  *static_cast<cudaStream_t*>(stream) = own.stream;
  return cudaSuccess;
}

// Kernels.
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  CALL();
  return made(start(function, configured(grid, block, shared, stream), arguments));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  CALL();
  return made(start(function, *config, arguments));
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  CALL();
  const auto found = runtime().functions.find(function);
  if (found == runtime().functions.end()) return made(cudaErrorInvalidDeviceFunction);
  if (!found->second.kernel) return made(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = runtime().module.architecture;
  attributes->numRegs = found->second.kernel->registers;
  attributes->maxThreadsPerBlock = found->second.kernel->most_threads;
  attributes->maxDynamicSharedSizeBytes = found->second.shared_opt_in;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  CALL();
  const auto found = runtime().functions.find(function);
  if (found == runtime().functions.end()) return made(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > runtime().machine.limits->shared_opt_in) return made(cudaErrorInvalidValue);
    found->second.shared_opt_in = value;
  } else if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    found->second.large_clusters = value;
  } else {
    return made(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) {
  CALL();
  const auto found = runtime().functions.find(function);
  if (found == runtime().functions.end()) return made(cudaErrorInvalidDeviceFunction);
  if (threads < 1 || threads > 1024) return made(cudaErrorInvalidValue);
  *blocks = resident_blocks(found->second, threads, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const cudaLaunchConfig_t* config) {
  CALL();
  const auto found = runtime().functions.find(function);
  if (found == runtime().functions.end()) return made(cudaErrorInvalidDeviceFunction);
  Launch launch;
  if (const cudaError_t status = check_launch(found->second, *config, nullptr, launch)) return made(status);
  *clusters = resident_blocks(found->second, launch.threads, launch.shared) * runtime().machine.limits->multiprocessors / launch.cluster;
  return cudaSuccess;
}

// Files of kernels. Whatever a fat binary holds, its kernels are those of the PTX.
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  CALL();
  if (!library || !code) return made(cudaErrorInvalidValue);
  uint32_t magic = 0;
  std::memcpy(&magic, code, sizeof magic);
  if (magic != kFatBinary) return made(cudaErrorInvalidKernelImage);
  *library = reinterpret_cast<cudaLibrary_t>(*libraries.insert(new char).first);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  CALL();
  if (!libraries.count(reinterpret_cast<char*>(library))) return made(cudaErrorInvalidResourceHandle);
  const auto found = runtime().module.kernels.find(name);
  if (found == runtime().module.kernels.end()) return made(cudaErrorSymbolNotFound);
  runtime().functions[&found->second] = {name, &found->second};
  *kernel = reinterpret_cast<cudaKernel_t>(&found->second);
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  CALL();
  char* const own = reinterpret_cast<char*>(library);
  if (!libraries.erase(own)) return made(cudaErrorInvalidResourceHandle);
  delete own;
  return cudaSuccess;
}

// The device.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  CALL();
  *count = runtime().gpus;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  CALL();
  *device = Runtime::gpu();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  CALL();
  if (device < 0 || device >= runtime().gpus) return made(cudaErrorInvalidDevice);
  Runtime::gpu() = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  CALL();
  if (device < 0 || device >= runtime().gpus) return made(cudaErrorInvalidDevice);
  const Limits& limits = *runtime().machine.limits;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = limits.shared_opt_in; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = limits.shared; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = limits.registers; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = limits.warps * kLanes; break;
    case cudaDevAttrWarpSize: *value = kLanes; break;
    case cudaDevAttrMultiProcessorCount: *value = limits.multiprocessors; break;
    case cudaDevAttrIntegrated: *value = limits.architecture == 87; break;
    case cudaDevAttrComputeCapabilityMajor: *value = limits.architecture / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = limits.architecture % 10; break;
    case cudaDevAttrClusterLaunch: *value = limits.clusters(); break;
    default: return made(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  CALL(, false);
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  CALL(, false);
  *version = CAPSEDGE_PTX_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  CALL();
  if (const cudaError_t status = runtime().refuse_in_capture(true)) return made(status);
  runtime().drain_all();
  return made(runtime().sticky);
}
cudaError_t cudaGetLastError() {
  const cudaError_t found = runtime().sticky ? runtime().sticky : last;
  last = cudaSuccess;
  return found;
}
cudaError_t cudaPeekAtLastError() { return runtime().sticky ? runtime().sticky : last; }

// Memory.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  CALL();
  const uint64_t used = runtime().machine.memory.in_use(Runtime::gpu());
  *total = runtime().memory;
  *free = *total - std::min(*total, used);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** to, size_t bytes) {
  CALL();
  return made(allocate(to, bytes, true));
}
cudaError_t cudaFree(void* address) {
  CALL();
  return made(release(address, true));
}
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  CALL();
  return made(allocate(to, bytes, false));
}
cudaError_t cudaFreeHost(void* address) {
  CALL();
  return made(release(address, false));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  CALL();
  const Allocation* const found = runtime().machine.memory.find(reinterpret_cast<uint64_t>(address));
  *attributes = {};
  attributes->type = !found ? cudaMemoryTypeUnregistered : found->device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = found ? found->gpu : -2;
  if (found && found->device) attributes->devicePointer = const_cast<void*>(address);
  if (found && !found->device) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CALL();
  return made(copy(to, from, bytes, kind, stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  CALL();
  if (const cudaError_t status = runtime().refuse_in_capture(false)) return made(status);
  if (const cudaError_t status = copy(to, from, bytes, kind, nullptr)) return made(status);
  const std::shared_ptr<Stream> own = runtime().stream(nullptr);
  runtime().drain(own, own->submitted);
  return made(runtime().sticky);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  CALL();
  if (!known(to, bytes)) return made(cudaErrorInvalidValue);
  return made(runtime().submit(stream, [=] {
    if (!known(to, bytes)) throw Fault(kIllegalAddress, "sets memory that has been freed");
    std::memset(to, value, bytes);
    runtime().machine.memory.mark_written(reinterpret_cast<uint64_t>(to), bytes);
  }));
}

// Streams and events.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  CALL();
  if (flags > cudaStreamNonBlocking) return made(cudaErrorInvalidValue);
  *stream = runtime().create_stream(flags != cudaStreamNonBlocking);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  CALL();
  return made(runtime().destroy_stream(stream));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CALL();
  const std::shared_ptr<Stream> own = runtime().stream(stream);
  if (!own) return made(cudaErrorInvalidResourceHandle);
  if (own->capture) {
    own->capture->invalid = true;
    return made(cudaErrorStreamCaptureUnsupported);
  }
  runtime().drain(own, own->submitted);
  return made(runtime().sticky);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  CALL();
  auto own = std::make_unique<Event>();
  own->gpu = Runtime::gpu();
  *event = reinterpret_cast<cudaEvent_t>(own.get());
  events[*event] = std::move(own);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  CALL();
  return made(events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CALL();
  const auto found = events.find(event);
  const std::shared_ptr<Stream> own = runtime().stream(stream);
  if (found == events.end() || !own || own->gpu != found->second->gpu) return made(cudaErrorInvalidResourceHandle);
  if (const cudaError_t status = runtime().submit(stream, [] {})) return made(status);
  *found->second = {own->gpu, own, own->submitted, own->capture.get()};
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CALL();
  const auto found = events.find(event);
  const std::shared_ptr<Stream> own = runtime().stream(stream);
  if (found == events.end() || !own) return made(cudaErrorInvalidResourceHandle);
  const Event recorded = *found->second;
  if (own->capture && recorded.stream && !recorded.captured) return made(cudaErrorStreamCaptureIsolation);
  if (recorded.captured != own->capture.get()) return made(cudaErrorNotSupported);  // a capture of several streams
  if (!recorded.stream || recorded.captured) return cudaSuccess;
  return made(runtime().submit(stream, [recorded] { runtime().drain(recorded.stream, recorded.position); }));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CALL();
  const auto found = events.find(event);
  if (found == events.end()) return made(cudaErrorInvalidResourceHandle);
  if (found->second->captured) return made(cudaErrorCapturedEvent);
  if (found->second->stream) runtime().drain(found->second->stream, found->second->position);
  return made(runtime().sticky);
}

// Graphs.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  CALL();
  return made(runtime().begin_capture(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  CALL();
  *graph = nullptr;
  std::unique_ptr<Graph> work;
  if (const cudaError_t status = runtime().end_capture(stream, work)) return made(status);
  std::shared_ptr<Graph> own = std::move(work);
  *graph = reinterpret_cast<cudaGraph_t>(own.get());
  graphs[*graph] = std::move(own);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  CALL();
  const auto found = graphs.find(graph);
  if (found == graphs.end()) return made(cudaErrorInvalidValue);
  auto own = std::make_shared<Graph>(*found->second);
  *executable = reinterpret_cast<cudaGraphExec_t>(own.get());
  executables[*executable] = std::move(own);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  CALL();
  const auto found = executables.find(executable);
  if (found == executables.end()) return made(cudaErrorInvalidValue);
  const std::shared_ptr<Graph> own = found->second;
  return made(runtime().submit(stream, [own] {
    for (const Work& work : *own) work();
  }));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  CALL();
  return made(executables.erase(executable) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  CALL();
  return made(graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
