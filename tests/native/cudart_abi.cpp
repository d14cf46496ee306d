// Compares kernels/cuda/cudart_abi.h with CUDA's own headers, which must be on the include path.
// Compiling it is the test: a wrong size, offset, value or signature does not compile.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

#include "cudart_abi.h"

namespace ours = capsedge::cuda::cudart;

// What a parameter is in the interface's terms: enumerations are integers, and structures are told apart by their size.
template <typename T>
constexpr size_t kKind = std::is_pointer_v<T> ? 1000 : sizeof(T);

template <typename A, typename B>
struct Same : std::false_type {};
template <typename R, typename... P, typename S, typename... Q>
struct Same<R (*)(P...), S (*)(Q...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(P) == sizeof...(Q))
      return kKind<R> == kKind<S> && ((kKind<P> == kKind<Q>)&&...);
    else
      return false;
  }();
};
#define SAME_FUNCTION(name, result, parameters) \
  static_assert(Same<decltype(&cuda##name), decltype(ours::Functions::name)>::value, "cuda" #name);
CAPSEDGE_CUDART(SAME_FUNCTION)
CAPSEDGE_CUDART_LIBRARY(SAME_FUNCTION)

// The driver's, which take the place of the runtime's.
namespace capsedge {
namespace cuda {
namespace cudart {
#define SAME_DRIVER(name, result, parameters) \
  static_assert(Same<decltype(&cu##name), result(*) parameters>::value, "cu" #name);
CAPSEDGE_CUDA_DRIVER(SAME_DRIVER)
CAPSEDGE_CUDART_LIBRARY(SAME_DRIVER)
}  // namespace cudart
}  // namespace cuda
}  // namespace capsedge

#define SAME_FIELD(theirs, their_field, own, own_field)                                                   \
  static_assert(offsetof(theirs, their_field) == offsetof(ours::own, own_field) &&                        \
                    sizeof(theirs::their_field) == sizeof(ours::own::own_field),                          \
                #theirs "::" #their_field);
static_assert(sizeof(cudaLaunchConfig_t) == sizeof(ours::Configuration));
SAME_FIELD(cudaLaunchConfig_t, gridDim, Configuration, grid)
SAME_FIELD(cudaLaunchConfig_t, blockDim, Configuration, block)
SAME_FIELD(cudaLaunchConfig_t, dynamicSmemBytes, Configuration, shared_bytes)
SAME_FIELD(cudaLaunchConfig_t, stream, Configuration, stream)
SAME_FIELD(cudaLaunchConfig_t, attrs, Configuration, attributes)
SAME_FIELD(cudaLaunchConfig_t, numAttrs, Configuration, attribute_count)
static_assert(sizeof(CUlaunchConfig) == sizeof(ours::DriverConfiguration));
static_assert(offsetof(CUlaunchConfig, gridDimZ) == offsetof(ours::DriverConfiguration, grid.z));
static_assert(offsetof(CUlaunchConfig, blockDimX) == offsetof(ours::DriverConfiguration, block));
static_assert(offsetof(CUlaunchConfig, sharedMemBytes) == offsetof(ours::DriverConfiguration, shared_bytes));
static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(ours::DriverConfiguration, stream));
static_assert(offsetof(CUlaunchConfig, attrs) == offsetof(ours::DriverConfiguration, attributes));
static_assert(offsetof(CUlaunchConfig, numAttrs) == offsetof(ours::DriverConfiguration, attribute_count));
static_assert(sizeof(CUlaunchAttribute) == sizeof(ours::Attribute));
static_assert(sizeof(cudaLaunchAttribute) == sizeof(ours::Attribute));
SAME_FIELD(cudaLaunchAttribute, id, Attribute, id)
SAME_FIELD(cudaLaunchAttribute, val, Attribute, all)
SAME_FIELD(cudaLaunchAttribute, val.clusterDim, Attribute, cluster)
static_assert(offsetof(cudaLaunchAttribute, val.clusterDim.y) == offsetof(ours::Attribute, cluster.y));
static_assert(sizeof(cudaFuncAttributes) <= sizeof(ours::FunctionAttributes));
SAME_FIELD(cudaFuncAttributes, sharedSizeBytes, FunctionAttributes, shared_bytes)
SAME_FIELD(cudaFuncAttributes, constSizeBytes, FunctionAttributes, constant_bytes)
SAME_FIELD(cudaFuncAttributes, localSizeBytes, FunctionAttributes, local_bytes)
SAME_FIELD(cudaFuncAttributes, maxThreadsPerBlock, FunctionAttributes, most_threads)
SAME_FIELD(cudaFuncAttributes, numRegs, FunctionAttributes, registers)
SAME_FIELD(cudaFuncAttributes, ptxVersion, FunctionAttributes, ptx_version)
SAME_FIELD(cudaFuncAttributes, binaryVersion, FunctionAttributes, binary_version)

#define SAME_VALUE(theirs, own) static_assert(static_cast<int>(theirs) == ours::own, #theirs);
SAME_VALUE(cudaSuccess, kSuccess)
SAME_VALUE(CU_FUNC_ATTRIBUTE_PTX_VERSION, kPtxVersion)
// Errors of the driver are reported in the runtime's words.
static_assert(int{CUDA_ERROR_NO_BINARY_FOR_GPU} == int{cudaErrorNoKernelImageForDevice});
static_assert(int{CUDA_ERROR_UNSUPPORTED_PTX_VERSION} == int{cudaErrorUnsupportedPtxVersion});
static_assert(int{CUDA_ERROR_INVALID_IMAGE} == int{cudaErrorInvalidKernelImage});
static_assert(int{CUDA_ERROR_NOT_FOUND} == int{cudaErrorSymbolNotFound});
static_assert(int{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES} == int{cudaErrorLaunchOutOfResources});
SAME_VALUE(cudaErrorInsufficientDriver, kInsufficientDriver)
SAME_VALUE(cudaErrorNoKernelImageForDevice, kNoKernelImage)
SAME_VALUE(cudaErrorUnsupportedPtxVersion, kUnsupportedPtx)
SAME_VALUE(cudaDevAttrMultiProcessorCount, kMultiProcessorCount)
SAME_VALUE(cudaDevAttrComputeCapabilityMajor, kCapabilityMajor)
SAME_VALUE(cudaDevAttrComputeCapabilityMinor, kCapabilityMinor)
SAME_VALUE(cudaDevAttrClusterLaunch, kClusterLaunch)
SAME_VALUE(cudaLaunchAttributeClusterDimension, kClusterDimension)
