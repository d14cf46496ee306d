/* Asks, without a GPU, whether a node of an ONNX file fits the CUDA kernels: who registers them has to know beforehand,
 * because a registered name never runs as its function body. */
#pragma once

#include "capsedge/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `type` is the type of the node, "DynamicRouting_2" for one. Of the inputs, shapes and types are read; 1 stands for a
 * batch of any size. Returns 0, or 1 with the reason in `why`. */
CAPSEDGE_KERNEL_EXPORT int capsedge_cuda_takes(const char* type, const capsedge_kernel_attribute* attributes,
                                               int32_t attribute_count, const capsedge_kernel_tensor* inputs,
                                               int32_t input_count, char* why, size_t why_size);

#ifdef __cplusplus
}
#endif
