// The part of the CUDA runtime's C interface that launches kernels, written down here so that host code needs no header
// of CUDA and one build serves every version. The interface of CUDA 12.8, which is the first with cudaLibrary*; 13 has
// the same. With an older runtime, the driver's functions do what it lacks. tests/native/cudart_abi.cpp compares all of this with the official headers where they are.
#pragma once

#include <cstddef>

namespace capsedge {
namespace cuda {
namespace cudart {

constexpr int kSuccess = 0, kInsufficientDriver = 35, kNoKernelImage = 209, kUnsupportedPtx = 222;
constexpr int kMultiProcessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76, kClusterLaunch = 120;
constexpr int kClusterDimension = 4;  // of a launch's attributes

struct Size {
  unsigned x, y, z;
};
struct Attribute {
  int id;
  char pad[4];
  union {
    Size cluster;
    char all[64];
  };
};
struct Configuration {
  Size grid, block;
  size_t shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
};
struct FunctionAttributes {
  size_t shared_bytes, constant_bytes, local_bytes;
  int most_threads, registers, ptx_version, binary_version;
  char rest[216];  // 104 in CUDA 13, of which half is reserved
};
static_assert(sizeof(Attribute) == 72 && sizeof(Configuration) == 56 && offsetof(FunctionAttributes, ptx_version) == 32,
              "of a 64-bit system");

// name after "cuda", result, parameters
#define CAPSEDGE_CUDART(F)                                                                                     \
  F(GetDevice, int, (int* device))                                                                             \
  F(DeviceGetAttribute, int, (int* value, int attribute, int device))                                          \
  F(DriverGetVersion, int, (int* version))                                                                     \
  F(RuntimeGetVersion, int, (int* version))                                                                    \
  F(GetLastError, int, ())                                                                                     \
  F(GetErrorString, const char*, (int code))                                                                   \
  F(FuncGetAttributes, int, (FunctionAttributes * attributes, const void* kernel))                             \
  F(OccupancyMaxActiveClusters, int, (int* clusters, const void* kernel, const Configuration* configuration))  \
  F(LaunchKernelExC, int, (const Configuration* configuration, const void* kernel, void** arguments))
// What a file of kernels needs besides.
#define CAPSEDGE_CUDART_LIBRARY(F)                                                                             \
  F(LibraryLoadData, int, (void** library, const void* code, int* options, void** values, unsigned count,      \
                           int* library_options, void** library_values, unsigned library_count))               \
  F(LibraryGetKernel, int, (void** kernel, void* library, const char* name))                                   \
  F(LibraryUnload, int, (void* library))

// What the driver has for a runtime without these, since CUDA 12.0: name after "cu", result, parameters.
constexpr int kPtxVersion = 5;  // of a kernel's attributes
struct DriverConfiguration {
  Size grid, block;
  unsigned shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(DriverConfiguration) == 56 && offsetof(DriverConfiguration, stream) == 32, "of a 64-bit system");
#define CAPSEDGE_CUDA_DRIVER(F)                                                                                \
  F(Init, int, (unsigned flags))                                                                               \
  F(DeviceGet, int, (int* device, int number))                                                                 \
  F(KernelGetAttribute, int, (int* value, int attribute, void* kernel, int device))                            \
  F(LaunchKernelEx, int, (const DriverConfiguration* configuration, void* kernel, void** arguments, void** extra))

struct Functions {
#define CAPSEDGE_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  CAPSEDGE_CUDART(CAPSEDGE_MEMBER)
  CAPSEDGE_CUDART_LIBRARY(CAPSEDGE_MEMBER)
#undef CAPSEDGE_MEMBER
};

}  // namespace cudart
}  // namespace cuda
}  // namespace capsedge
