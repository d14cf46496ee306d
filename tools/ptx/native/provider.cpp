// What ONNX Runtime's CUDA provider calls of libcudart beyond what capsedge calls: enough to start it, to run nodes whose
// kernels the PTX has, and to capture and replay graphs. Launches of its own kernels, whose PTX is not here, fail.
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "runtime.h"

using namespace ptx;

namespace {
Runtime& runtime() { return Runtime::instance(); }
}  // namespace

extern "C" {

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= runtime().gpus) return cudaErrorInvalidDevice;
  const Limits& limits = *runtime().machine.limits;
  *properties = {};
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = runtime().memory;
  properties->major = limits.architecture / 10, properties->minor = limits.architecture % 10;
  properties->multiProcessorCount = limits.multiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = limits.warps * 32;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(limits.shared_opt_in);
  properties->maxGridSize[0] = INT32_MAX, properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  return cudaSuccess;
}
// By that name, CUDA 12's structure, of which these are the places of what is not 0.
cudaError_t cudaGetDeviceProperties_v2(char* properties, int device) {
  cudaDeviceProp own;
  if (const cudaError_t status = cudaGetDeviceProperties(&own, device)) return status;
  std::memset(properties, 0, 1032);
  std::strcpy(properties, own.name);
  for (const auto& [place, value] : {std::pair{288, own.totalGlobalMem}, {296, own.sharedMemPerBlock}, {696, own.sharedMemPerBlockOptin}})
    std::memcpy(properties + place, &value, sizeof value);
  for (const auto& [place, value] : {std::pair{308, own.warpSize}, {320, own.maxThreadsPerBlock}, {336, own.maxGridSize[0]}, {340, own.maxGridSize[1]},
                                     {344, own.maxGridSize[2]}, {360, own.major}, {364, own.minor}, {388, own.multiProcessorCount},
                                     {624, own.maxThreadsPerMultiProcessor}})
    std::memcpy(properties + place, &value, sizeof value);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(made, graph, flags);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard<std::recursive_mutex> lock(runtime().mutex);
  const std::shared_ptr<Stream> own = runtime().stream(stream);
  *status = own && own->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** to, size_t bytes) { return cudaHostAlloc(to, bytes, 0); }
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user) {
  const std::lock_guard<std::recursive_mutex> lock(runtime().mutex);
  return runtime().submit(stream, [=] { function(user); });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  return *blocks = 1, cudaSuccess;
}
#define REFUSED(name, parameters) cudaError_t name parameters { return cudaErrorNotSupported; }
REFUSED(cudaFreeAsync, (void*, cudaStream_t))
REFUSED(cudaGetDriverEntryPointByVersion, (const char*, void**, unsigned, unsigned long long, cudaDriverEntryPointQueryResult*))
REFUSED(cudaKernelSetAttributeForDevice, (cudaKernel_t, cudaFuncAttribute, int, int))
REFUSED(cudaLaunchCooperativeKernel, (const void*, dim3, dim3, void**, size_t, cudaStream_t))
REFUSED(cudaMallocFromPoolAsync, (void**, size_t, cudaMemPool_t, cudaStream_t))
REFUSED(cudaMemPoolCreate, (cudaMemPool_t*, const cudaMemPoolProps*))
REFUSED(cudaMemPoolDestroy, (cudaMemPool_t))
REFUSED(cudaMemPoolGetAttribute, (cudaMemPool_t, cudaMemPoolAttr, void*))
REFUSED(cudaMemPoolSetAttribute, (cudaMemPool_t, cudaMemPoolAttr, void*))
REFUSED(cudaMemPoolTrimTo, (cudaMemPool_t, size_t))
REFUSED(cudaMemcpy2DAsync, (void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind, cudaStream_t))
REFUSED(cudaMemcpyFromSymbol, (void*, const void*, size_t, size_t, cudaMemcpyKind))

}  // extern "C"
