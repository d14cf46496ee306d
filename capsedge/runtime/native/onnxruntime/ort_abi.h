// The part of ONNX Runtime's C interface that the operator library uses, written down here because no header of
// ONNX Runtime comes with its packages. The interface is stable: a version's table of functions is only ever
// appended to. `slot` numbers are places in struct OrtApi; tests/native/ort_slots.cpp compares all of this with
// the official header where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

// ONNX Runtime 1.19, the oldest supported version.
constexpr uint32_t kOrtApiVersion = 19;

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtOpAttr;
struct OrtValue;
struct OrtCustomOp;

enum OrtErrorCode { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10
};
enum OrtOpAttrType { ORT_OP_ATTR_INT = 1, ORT_OP_ATTR_INTS = 2 };
enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

// name, slot, parameters; all return OrtStatus*, null for success, except CreateStatus (the same type, its result)
// and the Release functions (nothing).
#define CAPSEDGE_ORT_API(F)                                                                                      \
  F(CreateStatus, 0, OrtStatus*, (OrtErrorCode code, const char* message))                                       \
  F(GetErrorMessage, 2, const char*, (const OrtStatus* status))                                                  \
  F(CreateCustomOpDomain, 26, OrtStatus*, (const char* domain, OrtCustomOpDomain** out))                         \
  F(CustomOpDomain_Add, 27, OrtStatus*, (OrtCustomOpDomain * domain, const OrtCustomOp* op))              \
  F(AddCustomOpDomain, 28, OrtStatus*, (OrtSessionOptions * options, OrtCustomOpDomain * domain))                \
  F(GetTensorMutableData, 51, OrtStatus*, (OrtValue * value, void** out))                                        \
  F(CreateTensorTypeAndShapeInfo, 57, OrtStatus*, (OrtTensorTypeAndShapeInfo * *out))                            \
  F(SetTensorElementType, 58, OrtStatus*, (OrtTensorTypeAndShapeInfo * info, ONNXTensorElementDataType type))    \
  F(SetDimensions, 59, OrtStatus*, (OrtTensorTypeAndShapeInfo * info, const int64_t* values, size_t count))      \
  F(GetTensorElementType, 60, OrtStatus*, (const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* out)) \
  F(GetDimensionsCount, 61, OrtStatus*, (const OrtTensorTypeAndShapeInfo* info, size_t* out))                    \
  F(GetDimensions, 62, OrtStatus*, (const OrtTensorTypeAndShapeInfo* info, int64_t* values, size_t count))       \
  F(GetSymbolicDimensions, 63, OrtStatus*,                                                                       \
    (const OrtTensorTypeAndShapeInfo* info, const char* names[], size_t count))                                  \
  F(GetTensorTypeAndShape, 65, OrtStatus*, (const OrtValue* value, OrtTensorTypeAndShapeInfo** out))             \
  F(KernelInfoGetAttribute_float, 85, OrtStatus*, (const OrtKernelInfo* info, const char* name, float* out))     \
  F(KernelInfoGetAttribute_int64, 86, OrtStatus*, (const OrtKernelInfo* info, const char* name, int64_t* out))   \
  F(KernelContext_GetInputCount, 88, OrtStatus*, (const OrtKernelContext* context, size_t* out))                 \
  F(KernelContext_GetInput, 90, OrtStatus*, (const OrtKernelContext* context, size_t index, const OrtValue** out)) \
  F(KernelContext_GetOutput, 91, OrtStatus*,                                                                     \
    (OrtKernelContext * context, size_t index, const int64_t* shape, size_t rank, OrtValue** out))               \
  F(ReleaseStatus, 93, void, (OrtStatus * status))                                                               \
  F(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo * info))                                 \
  F(AddSessionConfigEntry, 130, OrtStatus*,                                                                      \
    (OrtSessionOptions * options, const char* key, const char* value))                                           \
  F(KernelInfoGetAttributeArray_float, 162, OrtStatus*,                                                          \
    (const OrtKernelInfo* info, const char* name, float* out, size_t* size))                                     \
  F(KernelInfoGetAttributeArray_int64, 163, OrtStatus*,                                                          \
    (const OrtKernelInfo* info, const char* name, int64_t* out, size_t* size))                                   \
  F(HasSessionConfigEntry, 237, OrtStatus*, (const OrtSessionOptions* options, const char* key, int* out))       \
  F(GetSessionConfigEntry, 238, OrtStatus*,                                                                      \
    (const OrtSessionOptions* options, const char* key, char* value, size_t* size))                              \
  F(KernelInfoGetConstantInput_tensor, 249, OrtStatus*,                                                          \
    (const OrtKernelInfo* info, size_t index, int* is_constant, const OrtValue** out))                           \
  F(ShapeInferContext_GetInputTypeShape, 268, OrtStatus*,                                                        \
    (const OrtShapeInferContext* context, size_t index, OrtTensorTypeAndShapeInfo** info))                       \
  F(ShapeInferContext_GetAttribute, 269, OrtStatus*,                                                             \
    (const OrtShapeInferContext* context, const char* name, const OrtOpAttr** out))                              \
  F(ShapeInferContext_SetOutputTypeShape, 270, OrtStatus*,                                                       \
    (const OrtShapeInferContext* context, size_t index, const OrtTensorTypeAndShapeInfo* info))                  \
  F(SetSymbolicDimensions, 271, OrtStatus*, (OrtTensorTypeAndShapeInfo * info, const char* names[], size_t count)) \
  F(ReadOpAttr, 272, OrtStatus*,                                                                                 \
    (const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t size, size_t* out))                      \
  F(KernelContext_ParallelFor, 274, OrtStatus*,                                                                  \
    (const OrtKernelContext* context, void (*fn)(void*, size_t), size_t total, size_t batches, void* user))

// A table of functions, reached by slot.
struct OrtApi;

namespace capsedge::ort {

#define CAPSEDGE_ORT_FUNCTION(name, slot, result, parameters)                                     \
  constexpr size_t k##name = slot;                                                                \
  using name##Type = result(*) parameters;                                                        \
  inline name##Type name(const OrtApi* api) {                                                     \
    return reinterpret_cast<name##Type>(reinterpret_cast<void* const*>(api)[k##name]);            \
  }
CAPSEDGE_ORT_API(CAPSEDGE_ORT_FUNCTION)

}  // namespace capsedge::ort

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void (*KernelCompute)(void* kernel, OrtKernelContext* context);
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
  size_t (*GetMayInplace)(int** input_index, int** output_index);
  void (*ReleaseMayInplace)(int* input_index, int* output_index);
  size_t (*GetAliasMap)(int** input_index, int** output_index);
  void (*ReleaseAliasMap)(int* input_index, int* output_index);
};
