// What a program needs of ONNX Runtime's C interface beside what the operator library uses (ort_abi.h), for
// ort_run.cpp. ort_slots.cpp compares this with the official header too.
#pragma once

#include "ort_abi.h"

struct OrtEnv;
struct OrtSession;
struct OrtRunOptions;
struct OrtMemoryInfo;

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_ERROR = 3 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };

#define CAPSEDGE_ORT_SESSION_API(F)                                                                              \
  F(CreateEnv, 3, OrtStatus*, (OrtLoggingLevel level, const char* name, OrtEnv** out))                           \
  F(CreateSession, 7, OrtStatus*,                                                                                \
    (const OrtEnv* env, const char* path, const OrtSessionOptions* options, OrtSession** out))                   \
  F(Run, 9, OrtStatus*,                                                                                          \
    (OrtSession * session, const OrtRunOptions* options, const char* const* input_names,                         \
     const OrtValue* const* inputs, size_t input_count, const char* const* output_names, size_t output_count,    \
     OrtValue** outputs))                                                                                        \
  F(CreateSessionOptions, 10, OrtStatus*, (OrtSessionOptions * *out))                                            \
  F(SetIntraOpNumThreads, 24, OrtStatus*, (OrtSessionOptions * options, int threads))                            \
  F(CreateTensorWithDataAsOrtValue, 49, OrtStatus*,                                                              \
    (const OrtMemoryInfo* memory, void* data, size_t bytes, const int64_t* shape, size_t rank,                   \
     ONNXTensorElementDataType type, OrtValue** out))                                                            \
  F(CreateCpuMemoryInfo, 69, OrtStatus*, (OrtAllocatorType type, OrtMemType memory, OrtMemoryInfo** out))        \
  F(RegisterCustomOpsLibrary_V2, 228, OrtStatus*, (OrtSessionOptions * options, const char* path))

namespace capsedge::ort {
CAPSEDGE_ORT_SESSION_API(CAPSEDGE_ORT_FUNCTION)
}  // namespace capsedge::ort
