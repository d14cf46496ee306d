// What a program that loads and runs models needs of ONNX Runtime's C interface, beside what the operators use
// (ort_abi.h). tests/native/ort_slots.cpp compares this with the official header too.
#pragma once

#include "ort_abi.h"

struct OrtEnv;
struct OrtSession;
struct OrtRunOptions;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtTypeInfo;
struct OrtIoBinding;
struct OrtCUDAProviderOptionsV2;

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_ERROR = 3, ORT_LOGGING_LEVEL_FATAL = 4 };
enum OrtAllocatorType { OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };

#define CAPSEDGE_ORT_SESSION_API(F)                                                                              \
  F(CreateEnv, 3, OrtStatus*, (OrtLoggingLevel level, const char* name, OrtEnv** out))                           \
  F(CreateSession, 7, OrtStatus*,                                                                                \
    (const OrtEnv* env, const char* path, const OrtSessionOptions* options, OrtSession** out))                   \
  F(CreateSessionFromArray, 8, OrtStatus*,                                                                       \
    (const OrtEnv* env, const void* data, size_t bytes, const OrtSessionOptions* options, OrtSession** out))     \
  F(Run, 9, OrtStatus*,                                                                                          \
    (OrtSession * session, const OrtRunOptions* options, const char* const* input_names,                         \
     const OrtValue* const* inputs, size_t input_count, const char* const* output_names, size_t output_count,    \
     OrtValue** outputs))                                                                                        \
  F(CreateSessionOptions, 10, OrtStatus*, (OrtSessionOptions * *out))                                            \
  F(SetSessionLogSeverityLevel, 22, OrtStatus*, (OrtSessionOptions * options, int level))                        \
  F(SetIntraOpNumThreads, 24, OrtStatus*, (OrtSessionOptions * options, int threads))                            \
  F(SetInterOpNumThreads, 25, OrtStatus*, (OrtSessionOptions * options, int threads))                            \
  F(SessionGetInputCount, 30, OrtStatus*, (const OrtSession* session, size_t* out))                              \
  F(SessionGetOutputCount, 31, OrtStatus*, (const OrtSession* session, size_t* out))                             \
  F(SessionGetInputTypeInfo, 33, OrtStatus*, (const OrtSession* session, size_t index, OrtTypeInfo** out))       \
  F(SessionGetOutputTypeInfo, 34, OrtStatus*, (const OrtSession* session, size_t index, OrtTypeInfo** out))      \
  F(SessionGetInputName, 36, OrtStatus*,                                                                         \
    (const OrtSession* session, size_t index, OrtAllocator* allocator, char** out))                              \
  F(SessionGetOutputName, 37, OrtStatus*,                                                                        \
    (const OrtSession* session, size_t index, OrtAllocator* allocator, char** out))                              \
  F(CreateRunOptions, 39, OrtStatus*, (OrtRunOptions * *out))                                                    \
  F(RunOptionsSetRunLogSeverityLevel, 41, OrtStatus*, (OrtRunOptions * options, int level))                      \
  F(CreateTensorWithDataAsOrtValue, 49, OrtStatus*,                                                              \
    (const OrtMemoryInfo* memory, void* data, size_t bytes, const int64_t* shape, size_t rank,                   \
     ONNXTensorElementDataType type, OrtValue** out))                                                            \
  F(CastTypeInfoToTensorInfo, 55, OrtStatus*, (const OrtTypeInfo* info, const OrtTensorTypeAndShapeInfo** out))  \
  F(CreateCpuMemoryInfo, 69, OrtStatus*, (OrtAllocatorType type, OrtMemType memory, OrtMemoryInfo** out))        \
  F(AllocatorFree, 76, OrtStatus*, (OrtAllocator * allocator, void* memory))                                     \
  F(GetAllocatorWithDefaultOptions, 78, OrtStatus*, (OrtAllocator * *out))                                       \
  F(ReleaseSession, 95, void, (OrtSession * session))                                                            \
  F(ReleaseValue, 96, void, (OrtValue * value))                                                                  \
  F(ReleaseRunOptions, 97, void, (OrtRunOptions * options))                                                      \
  F(ReleaseTypeInfo, 98, void, (OrtTypeInfo * info))                                                             \
  F(ReleaseSessionOptions, 100, void, (OrtSessionOptions * options))                                             \
  F(RegisterCustomOpsLibrary_V2, 228, OrtStatus*, (OrtSessionOptions * options, const char* path))

// And for sessions on a GPU.
#define CAPSEDGE_ORT_PROVIDER_API(F)                                                                             \
  F(CreateMemoryInfo, 68, OrtStatus*,                                                                            \
    (const char* name, OrtAllocatorType type, int id, OrtMemType memory, OrtMemoryInfo** out))                   \
  F(ReleaseMemoryInfo, 94, void, (OrtMemoryInfo * memory))                                                       \
  F(GetAvailableProviders, 125, OrtStatus*, (char*** out, int* count))                                           \
  F(ReleaseAvailableProviders, 126, OrtStatus*, (char** providers, int count))                                   \
  F(RunWithBinding, 133, OrtStatus*,                                                                             \
    (OrtSession * session, const OrtRunOptions* options, const OrtIoBinding* binding))                           \
  F(CreateIoBinding, 134, OrtStatus*, (OrtSession * session, OrtIoBinding** out))                                \
  F(ReleaseIoBinding, 135, void, (OrtIoBinding * binding))                                                       \
  F(BindInput, 136, OrtStatus*, (OrtIoBinding * binding, const char* name, const OrtValue* value))               \
  F(BindOutput, 137, OrtStatus*, (OrtIoBinding * binding, const char* name, const OrtValue* value))              \
  F(BindOutputToDevice, 138, OrtStatus*,                                                                         \
    (OrtIoBinding * binding, const char* name, const OrtMemoryInfo* memory))                                     \
  F(GetBoundOutputValues, 140, OrtStatus*,                                                                       \
    (const OrtIoBinding* binding, OrtAllocator* allocator, OrtValue*** out, size_t* count))                      \
  F(AddRunConfigEntry, 165, OrtStatus*, (OrtRunOptions * options, const char* key, const char* value))           \
  F(SessionOptionsAppendExecutionProvider_CUDA_V2, 204, OrtStatus*,                                              \
    (OrtSessionOptions * options, const OrtCUDAProviderOptionsV2* cuda))                                         \
  F(CreateCUDAProviderOptions, 205, OrtStatus*, (OrtCUDAProviderOptionsV2 * *out))                               \
  F(UpdateCUDAProviderOptions, 206, OrtStatus*,                                                                  \
    (OrtCUDAProviderOptionsV2 * cuda, const char* const* keys, const char* const* values, size_t count))         \
  F(ReleaseCUDAProviderOptions, 208, void, (OrtCUDAProviderOptionsV2 * cuda))

namespace capsedge::ort {
CAPSEDGE_ORT_SESSION_API(CAPSEDGE_ORT_FUNCTION)
CAPSEDGE_ORT_PROVIDER_API(CAPSEDGE_ORT_FUNCTION)
}  // namespace capsedge::ort
