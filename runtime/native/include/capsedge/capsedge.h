/* The operators without a runtime: a small C interface for tests, measurements and other languages.
 * docs/operators.md says what they compute. Functions that can fail return 0, or 1 with a sentence in `error`. */
#ifndef CAPSEDGE_CAPSEDGE_H_
#define CAPSEDGE_CAPSEDGE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSEDGE_EXPORT __attribute__((visibility("default")))

enum { CAPSEDGE_FLOAT = 0, CAPSEDGE_FLOAT16 = 1 };

/* Contiguous, in the order of the specification. */
typedef struct capsedge_tensor {
  void* data;
  const int64_t* shape;
  int32_t rank;
  int32_t type;
} capsedge_tensor;

typedef struct capsedge_attribute {
  const char* name;
  const double* values;
  int32_t count;
} capsedge_attribute;

typedef struct capsedge_operator capsedge_operator;

/* SIMD levels that this machine runs, slowest first, with commas between. */
CAPSEDGE_EXPORT const char* capsedge_levels(void);

/* `name` is the type of an ONNX node: "Squash", "DynamicRouting", "EMRouting", "AttentionRouting". The SIMD level
 * is the fastest, or what the environment variable CAPSEDGE_SIMD says. */
CAPSEDGE_EXPORT int capsedge_create(const char* name, const capsedge_attribute* attributes, int32_t count,
                                    capsedge_operator** created, char* error, size_t error_size);

CAPSEDGE_EXPORT const char* capsedge_level_of(const capsedge_operator* created);

/* Input `index` will be the same in every run: weights are packed here. */
CAPSEDGE_EXPORT int capsedge_constant(capsedge_operator* created, int32_t index, const capsedge_tensor* tensor,
                                      char* error, size_t error_size);

/* Outputs are allocated by the caller and must not overlap inputs. Several threads may run one operator. */
CAPSEDGE_EXPORT int capsedge_run(const capsedge_operator* created, const capsedge_tensor* inputs, int32_t input_count,
                                 const capsedge_tensor* outputs, int32_t output_count, int32_t threads, char* error,
                                 size_t error_size);

CAPSEDGE_EXPORT void capsedge_destroy(capsedge_operator* created);

#ifdef __cplusplus
}
#endif

#endif
