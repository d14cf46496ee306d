/* The operators without a runtime: a small C interface for tests, measurements and other languages. *
 * docs/reference/operators.md specifies what they compute. Functions that can fail return 0, or 1 with a sentence in
 * `error`. * Whole models run through another header, libcapsedge/include/capsedge.h. */
#ifndef CAPSEDGE_KERNELS_H_
#define CAPSEDGE_KERNELS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSEDGE_KERNEL_EXPORT __attribute__((visibility("default")))

enum {
  CAPSEDGE_KERNEL_FLOAT = 0,
  CAPSEDGE_KERNEL_FLOAT16 = 1,
  CAPSEDGE_KERNEL_INT8 = 2,
  CAPSEDGE_KERNEL_UINT8 = 3,
  CAPSEDGE_KERNEL_INT32 = 4
};

/* Contiguous, in the order of the specification. */
typedef struct capsedge_kernel_tensor {
  void* data;
  const int64_t* shape;
  int32_t rank;
  int32_t type;
} capsedge_kernel_tensor;

typedef struct capsedge_kernel_attribute {
  const char* name;
  const double* values;
  int32_t count;
} capsedge_kernel_attribute;

typedef struct capsedge_kernel capsedge_kernel;

/* SIMD levels that this machine supports, slowest first, separated by commas. */
CAPSEDGE_KERNEL_EXPORT const char* capsedge_kernel_levels(void);

/* The operators with their inputs, outputs and attributes, as JSON:
 *   [{"name": "DynamicRouting",
 *     "inputs": [{"name": "u", "type": "T", "optional": false}, ...],
 *     "outputs": [{"name": "v", "type": "T", "optional": false}],
 *     "attributes": [{"name": "iterations", "type": "int", "default": 3}, ...], "quantizes": null}, ...]
 * Types of tensors: T float or float16, the same for all T of a node; f float, i int32, b int8, B uint8. Optional inputs
 * are the last. Types of attributes: int, float, ints, floats; the default of a required one is null. `quantizes` names
 * the float operator that an operator with an INT8 weight stands for. */
CAPSEDGE_KERNEL_EXPORT const char* capsedge_kernel_operators(void);

/* `name` is the type of an ONNX node of docs/reference/operators.md, "Squash" for one. The SIMD level is the fastest,
 * or the one that the environment variable CAPSEDGE_SIMD names. */
CAPSEDGE_KERNEL_EXPORT int capsedge_kernel_create(const char* name, const capsedge_kernel_attribute* attributes,
                                                  int32_t count, capsedge_kernel** created, char* error,
                                                  size_t error_size);

CAPSEDGE_KERNEL_EXPORT const char* capsedge_kernel_level_of(const capsedge_kernel* created);

/* Input `index` will be the same in every run: weights are packed here. */
CAPSEDGE_KERNEL_EXPORT int capsedge_kernel_constant(capsedge_kernel* created, int32_t index,
                                                    const capsedge_kernel_tensor* tensor, char* error,
                                                    size_t error_size);

/* Outputs are allocated by the caller and must not overlap inputs. Several threads may run one operator. */
CAPSEDGE_KERNEL_EXPORT int capsedge_kernel_run(const capsedge_kernel* created, const capsedge_kernel_tensor* inputs,
                                               int32_t input_count, const capsedge_kernel_tensor* outputs,
                                               int32_t output_count, int32_t threads, char* error, size_t error_size);

CAPSEDGE_KERNEL_EXPORT void capsedge_kernel_destroy(capsedge_kernel* created);

#ifdef __cplusplus
}
#endif

#endif
