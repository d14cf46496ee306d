// What a kernel of the CUDA provider needs of ONNX Runtime's C interface beside ort_abi.h; all of it is there since 1.18.
// tests/native/ort_slots.cpp compares this with the official header too.
#pragma once

#include "ort_abi.h"

struct OrtMemoryInfo;

// The beginning of struct OrtAllocator, which is only ever appended to.
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t bytes);
  void (*Free)(OrtAllocator* self, void* memory);
};

#define CAPSEDGE_ORT_CUDA_API(F)                                                                                 \
  F(ReleaseAllocator, 132, void, (OrtAllocator * allocator))                                                     \
  F(KernelContext_GetGPUComputeStream, 193, OrtStatus*, (const OrtKernelContext* context, void** out))           \
  F(GetTensorMemoryInfo, 194, OrtStatus*, (const OrtValue* value, const OrtMemoryInfo** out))                    \
  F(KernelContext_GetScratchBuffer, 277, OrtStatus*,                                                             \
    (const OrtKernelContext* context, const OrtMemoryInfo* memory, size_t bytes, void** out))                    \
  F(KernelInfoGetAllocator, 278, OrtStatus*, (const OrtKernelInfo* info, OrtMemType type, OrtAllocator** out))

namespace capsedge::ort {
CAPSEDGE_ORT_CUDA_API(CAPSEDGE_ORT_FUNCTION)
}  // namespace capsedge::ort
