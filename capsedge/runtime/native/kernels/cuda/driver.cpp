#include "driver.h"

#ifndef CAPSEDGE_EMULATE

#include "system/system.h"

namespace capsedge {
namespace cuda {
namespace {

using namespace cudart;

struct Driver {
#define CAPSEDGE_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  CAPSEDGE_CUDA_DRIVER(CAPSEDGE_MEMBER)
  CAPSEDGE_CUDART_LIBRARY(CAPSEDGE_MEMBER)
#undef CAPSEDGE_MEMBER
  int (*current)(int* device) = nullptr;  // the runtime's
};
Driver driver;

// Errors have the same numbers in the driver and in the runtime.
int attributes_of(FunctionAttributes* found, const void* kernel) {
  int number = 0, device = 0;
  *found = {};
  if (const int status = driver.current(&number)) return status;
  if (const int status = driver.DeviceGet(&device, number)) return status;
  return driver.KernelGetAttribute(&found->ptx_version, kPtxVersion, const_cast<void*>(kernel), device);
}

// Without clusters: so old a runtime is that of JetPack 6, whose GPUs have none.
int no_clusters(int* clusters, const void*, const Configuration*) {
  *clusters = 0;
  return kSuccess;
}

int launch(const Configuration* c, const void* kernel, void** arguments) {
  const DriverConfiguration configuration{c->grid,       c->block,           static_cast<unsigned>(c->shared_bytes), c->stream,
                                          c->attributes, c->attribute_count};
  return driver.LaunchKernelEx(&configuration, const_cast<void*>(kernel), arguments, nullptr);
}

}  // namespace

bool take_from_driver(Functions& functions) {
  void* const library = load_library("libcuda.so.1");  // stays open
  if (!library) return false;
  Driver found;
  bool complete = true;
#define CAPSEDGE_LOOK_UP(name, result, parameters)                                       \
  found.name = reinterpret_cast<decltype(found.name)>(symbol_of(library, "cu" #name));   \
  complete = complete && found.name;
  CAPSEDGE_CUDA_DRIVER(CAPSEDGE_LOOK_UP)
  CAPSEDGE_CUDART_LIBRARY(CAPSEDGE_LOOK_UP)
  if (!complete || found.Init(0) != kSuccess) return false;
  found.current = functions.GetDevice;
  driver = found;
  functions.LibraryLoadData = driver.LibraryLoadData;
  functions.LibraryGetKernel = driver.LibraryGetKernel;
  functions.LibraryUnload = driver.LibraryUnload;
  functions.FuncGetAttributes = attributes_of;
  functions.OccupancyMaxActiveClusters = no_clusters;
  functions.LaunchKernelExC = launch;
  return true;
}

}  // namespace cuda
}  // namespace capsedge

#endif
