// The driver's functions by which the kernels' file is loaded and run where the CUDA runtime is older than 12.8.
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

// Errors have the same numbers.
CUresult as_driver(cudaError_t status) { return static_cast<CUresult>(status); }
cudaKernel_t kernel_of(CUkernel kernel) { return reinterpret_cast<cudaKernel_t>(kernel); }

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice* device, int number) {
  if (number != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  return as_driver(
      cudaLibraryLoadData(reinterpret_cast<cudaLibrary_t*>(library), code, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return as_driver(cudaLibraryGetKernel(reinterpret_cast<cudaKernel_t*>(kernel),
                                        reinterpret_cast<cudaLibrary_t>(library), name));
}

CUresult cuLibraryUnload(CUlibrary library) {
  return as_driver(cudaLibraryUnload(reinterpret_cast<cudaLibrary_t>(library)));
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  cudaFuncAttributes found;
  if (attribute != CU_FUNC_ATTRIBUTE_PTX_VERSION) return CUDA_ERROR_NOT_SUPPORTED;
  const cudaError_t status = cudaFuncGetAttributes(&found, kernel_of(kernel));
  *value = found.ptxVersion;
  return as_driver(status);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction kernel, void** arguments, void**) {
  cudaLaunchConfig_t made{};
  made.gridDim = dim3(config->gridDimX, config->gridDimY, config->gridDimZ);
  made.blockDim = dim3(config->blockDimX, config->blockDimY, config->blockDimZ);
  made.dynamicSmemBytes = config->sharedMemBytes;
  made.stream = config->hStream;
  if (config->numAttrs) return CUDA_ERROR_NOT_SUPPORTED;  // clusters, for which no driver is asked
  return as_driver(cudaLaunchKernelExC(&made, kernel, arguments));
}
}
