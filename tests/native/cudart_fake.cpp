// A CUDA runtime without a GPU behind it, for what the loader of the kernels refuses: each call of cudaX returns the
// number in the environment's FAKE_cudaX, else success. With -DOLD it is one of CUDA 12.6, without cudaLibrary*; with
// -DDRIVER, the driver in place of it, which says what it launches.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cudart_abi.h"

using namespace capsedge::cuda::cudart;

namespace {
int answer(const char* call) {
  const char* const told = std::getenv((std::string("FAKE_") + call).c_str());
  return told ? std::atoi(told) : kSuccess;
}
int number(const char* name, int otherwise) {
  const char* const told = std::getenv(name);
  return told ? std::atoi(told) : otherwise;
}
#ifdef OLD
constexpr int kVersion = 12060;
#else
constexpr int kVersion = 13000;
#endif
}  // namespace

extern "C" {
#ifdef DRIVER
int cuInit(unsigned) { return answer("cuInit"); }
int cuDeviceGet(int* device, int number) {
  *device = number;
  return answer("cuDeviceGet");
}
int cuLibraryLoadData(void**, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  std::printf("driver loads %.3s\n", static_cast<const char*>(code) + 1);
  return answer("cuLibraryLoadData");
}
int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = const_cast<char*>(name);
  return answer("cuLibraryGetKernel");
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuKernelGetAttribute(int* value, int attribute, void*, int) {
  *value = attribute == kPtxVersion ? 87 : 0;
  return answer("cuKernelGetAttribute");
}
int cuLaunchKernelEx(const DriverConfiguration* c, void* kernel, void**, void**) {
  std::printf("driver launches %s: %u %u\n", static_cast<char*>(kernel), c->grid.x, c->block.x);
  std::fflush(stdout);
  return answer("cuLaunchKernelEx");
}
#else
int cudaGetDevice(int* device) {
  *device = 0;
  return answer("cudaGetDevice");
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = number("FAKE_CAPABILITY", 70);
  *value = attribute == kCapabilityMajor ? capability / 10 : attribute == kCapabilityMinor ? capability % 10 : 0;
  return kSuccess;
}
int cudaDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER", 13000);
  return kSuccess;
}
int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
int cudaGetLastError() { return kSuccess; }
const char* cudaGetErrorString(int code) { return code == kSuccess ? "no error" : "as told"; }
int cudaFuncGetAttributes(FunctionAttributes*, const void*) { return answer("cudaFuncGetAttributes"); }
int cudaOccupancyMaxActiveClusters(int*, const void*, const Configuration*) { return kSuccess; }
int cudaLaunchKernelExC(const Configuration*, const void*, void**) { return answer("cudaLaunchKernelExC"); }
#ifndef OLD
int cudaLibraryLoadData(void**, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  return answer("cudaLibraryLoadData");
}
int cudaLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = const_cast<char*>(name);
  return answer("cudaLibraryGetKernel");
}
int cudaLibraryUnload(void*) { return kSuccess; }
#endif
#endif
}
