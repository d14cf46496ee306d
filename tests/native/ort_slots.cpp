// Compares ort_abi.h, ort_session_abi.h and cuda_abi.h of capsedge/runtime/native/onnxruntime with ONNX Runtime's own header,
// which must be on the include path.
// Compiling it is the test: a wrong slot, field, value or number of parameters does not compile.
#include <onnxruntime_c_api.h>

#include <cstddef>
#include <cstdint>

namespace ours {
#include "cuda_abi.h"
#include "ort_session_abi.h"
}

template <typename F>
struct Parameters;
template <typename R, typename... P>
struct Parameters<R (*)(P...)> {
  static constexpr int count = sizeof...(P);
};
template <typename R, typename... P>
struct Parameters<R (*)(P...) noexcept> {
  static constexpr int count = sizeof...(P);
};

#define SAME_FUNCTION(name, slot, result, parameters)                                                      \
  static_assert(offsetof(OrtApi, name) == slot * sizeof(void*), "OrtApi::" #name " has another slot");      \
  static_assert(Parameters<decltype(OrtApi::name)>::count ==                                               \
                    Parameters<ours::capsedge::ort::name##Type>::count,                                    \
                "OrtApi::" #name " takes another number of parameters");
CAPSEDGE_ORT_API(SAME_FUNCTION)
CAPSEDGE_ORT_SESSION_API(SAME_FUNCTION)
CAPSEDGE_ORT_PROVIDER_API(SAME_FUNCTION)
CAPSEDGE_ORT_CUDA_API(SAME_FUNCTION)

#define SAME_FIELD(name)                                                                                   \
  static_assert(offsetof(OrtCustomOp, name) == offsetof(ours::OrtCustomOp, name), "OrtCustomOp::" #name);
SAME_FIELD(version)
SAME_FIELD(CreateKernel)
SAME_FIELD(GetName)
SAME_FIELD(GetExecutionProviderType)
SAME_FIELD(GetInputType)
SAME_FIELD(GetInputTypeCount)
SAME_FIELD(GetOutputType)
SAME_FIELD(GetOutputTypeCount)
SAME_FIELD(KernelCompute)
SAME_FIELD(KernelDestroy)
SAME_FIELD(GetInputCharacteristic)
SAME_FIELD(GetOutputCharacteristic)
SAME_FIELD(GetInputMemoryType)
SAME_FIELD(GetVariadicInputMinArity)
SAME_FIELD(GetVariadicInputHomogeneity)
SAME_FIELD(GetVariadicOutputMinArity)
SAME_FIELD(GetVariadicOutputHomogeneity)
SAME_FIELD(CreateKernelV2)
SAME_FIELD(KernelComputeV2)
SAME_FIELD(InferOutputShapeFn)
SAME_FIELD(GetStartVersion)
SAME_FIELD(GetEndVersion)
SAME_FIELD(GetMayInplace)
SAME_FIELD(ReleaseMayInplace)
SAME_FIELD(GetAliasMap)
SAME_FIELD(ReleaseAliasMap)
static_assert(offsetof(OrtAllocator, version) == offsetof(ours::OrtAllocator, version), "OrtAllocator::version");
static_assert(offsetof(OrtAllocator, Alloc) == offsetof(ours::OrtAllocator, Alloc), "OrtAllocator::Alloc");
static_assert(offsetof(OrtAllocator, Free) == offsetof(ours::OrtAllocator, Free), "OrtAllocator::Free");
static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ours::OrtApiBase, GetApi), "OrtApiBase::GetApi");
static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(ours::OrtApiBase, GetVersionString),
              "OrtApiBase::GetVersionString");

#define SAME_VALUE(name) static_assert(int(name) == int(ours::name), #name);
SAME_VALUE(ORT_FAIL)
SAME_VALUE(ORT_INVALID_ARGUMENT)
SAME_VALUE(ORT_NOT_IMPLEMENTED)
SAME_VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
SAME_VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
SAME_VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8)
SAME_VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
SAME_VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
SAME_VALUE(ORT_OP_ATTR_INT)
SAME_VALUE(ORT_OP_ATTR_INTS)
SAME_VALUE(INPUT_OUTPUT_REQUIRED)
SAME_VALUE(INPUT_OUTPUT_OPTIONAL)
SAME_VALUE(OrtMemTypeDefault)
SAME_VALUE(ORT_LOGGING_LEVEL_ERROR)
SAME_VALUE(ORT_LOGGING_LEVEL_FATAL)
SAME_VALUE(OrtArenaAllocator)

static_assert(ORT_API_VERSION >= ours::kOrtApiVersion, "the header is older than what the library asks for");
