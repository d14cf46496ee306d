// Kernels whose accesses, registers and mistakes are known, to test the execution of PTX with.
#include <cuda_runtime.h>

namespace {

extern __shared__ float memory[];

// Each thread reads one element of `from`, `stride` apart, and puts it through shared memory, `stride` apart.
__global__ void strided(const float* from, float* to, int stride) {
  memory[threadIdx.x * stride] = from[threadIdx.x * stride];
  __syncthreads();
  to[threadIdx.x] = memory[threadIdx.x * stride];
}

// More registers than 1024 threads can have.
__global__ void hungry(const float* from, float* to, int size) {
  float kept[96];
#pragma unroll
  for (int k = 0; k < 96; ++k) kept[k] = from[k * size + threadIdx.x];
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 96; ++k) sum = sum * kept[95 - k] + kept[k];
  to[threadIdx.x] = sum;
}

__global__ void add_one(const float* from, float* to, int) { to[threadIdx.x] = from[threadIdx.x] + 1.0f; }

// Odd lanes go another way, as often as their number says.
__global__ void diverging(const float* from, float* to, int count) {
  float sum = from[threadIdx.x];
  if (threadIdx.x & 1)
    for (int k = 0; k < static_cast<int>(threadIdx.x) % count; ++k) sum = sum * 2.0f + 1.0f;
  to[threadIdx.x] = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

using Kernel = void (*)(const float*, float*, int);
const Kernel kernels[] = {strided, hungry, add_one, diverging};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int probe(int kernel, int blocks, int threads, int cluster, size_t shared, const float* from, float* to, int number,
                     void* stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = attribute.val.clusterDim.z = 1;
  attribute.val.clusterDim.y = static_cast<unsigned>(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = cluster > 0;
  return cudaLaunchKernelEx(&config, kernels[kernel], from, to, number);
}
// By <<<>>>, which goes through other functions of libcudart.
EXPORT int probe_plainly(const float* from, float* to, void* stream) {
  add_one<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>(from, to, 0);
  return cudaGetLastError();
}
EXPORT int probe_leave(int kernel, int bytes) {
  return cudaFuncSetAttribute(kernels[kernel], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
