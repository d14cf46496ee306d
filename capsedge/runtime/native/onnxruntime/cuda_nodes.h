/* Single nodes on the CUDA kernels, for callers outside ONNX Runtime. A node is the type of an ONNX node
 * ("DynamicRouting_2" for one) with its attributes and inputs; of the inputs, shapes and types are read, all contiguous.
 * Functions that can fail give the reason in `why`. */
#pragma once

#include "capsedge/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct capsedge_cuda_node {
  const char* type;
  const capsedge_kernel_attribute* attributes;
  int32_t attribute_count;
  const capsedge_kernel_tensor* inputs;
  int32_t input_count;
} capsedge_cuda_node;

/* Asks, without a GPU, whether a node fits the kernels: who registers them has to know beforehand, because a registered
 * name never runs as its function body. 1 stands for a batch of any size. Returns 0, or 1 if it does not fit. */
CAPSEDGE_KERNEL_EXPORT int capsedge_cuda_takes(const capsedge_cuda_node* node, char* why, size_t why_size);

/* Bytes of scratch memory that a node needs on the current GPU, which may be 0; -1 if the kernels do not take it. */
CAPSEDGE_KERNEL_EXPORT int64_t capsedge_cuda_scratch(const capsedge_cuda_node* node, char* why, size_t why_size);

/* Queues a node on a stream of the current GPU; nothing waits or allocates. All addresses are on the device: `in` has
 * those of the inputs, `out` those of the operator's outputs, in the order of the specification. Load the kernels first
 * (capsedge_cuda_load). Returns 0, or 1 if nothing, or not everything, was queued. */
CAPSEDGE_KERNEL_EXPORT int capsedge_cuda_run(const capsedge_cuda_node* node, const void* const* in, void* const* out,
                                             void* scratch, int64_t scratch_bytes, void* stream, char* why,
                                             size_t why_size);

#ifdef __cplusplus
}
#endif
