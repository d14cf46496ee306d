/* The operators on a GPU, without a runtime: a plain C interface over device addresses. docs/reference/operators.md
 * specifies what they compute, docs/explanation/cuda.md explains how. No function but capsedge_cuda_load allocates or
 * synchronises: all queue their work on the given stream and can be captured in a CUDA graph. Results are bit-identical
 * in every run with the same shapes on the same GPU. */
#ifndef CAPSEDGE_CAPSEDGE_CUDA_H_
#define CAPSEDGE_CAPSEDGE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSEDGE_CUDA_EXPORT __attribute__((visibility("default")))

enum { CAPSEDGE_CUDA_FLOAT = 0, CAPSEDGE_CUDA_FLOAT16 = 1, CAPSEDGE_CUDA_INT8 = 2 };
/* VOTES is dynamic routing over given votes. */
enum {
  CAPSEDGE_CUDA_DYNAMIC = 0,
  CAPSEDGE_CUDA_EM = 1,
  CAPSEDGE_CUDA_ATTENTION = 2,
  CAPSEDGE_CUDA_VOTES = 3,
  CAPSEDGE_CUDA_SELF_ATTENTION = 4
};
/* spec: cuda limits */
#define CAPSEDGE_CUDA_MAX_ITERATIONS 64
/* /spec */
/* PORTABLE is what AUTO would choose on a GPU without thread block clusters. */
enum {
  CAPSEDGE_CUDA_AUTO = 0,
  CAPSEDGE_CUDA_GENERIC = 1,
  CAPSEDGE_CUDA_SPLIT = 2,
  CAPSEDGE_CUDA_TILED = 3,
  CAPSEDGE_CUDA_CLUSTER = 4,
  CAPSEDGE_CUDA_PORTABLE = 5
};

/* One routing layer. Dense capsules are a map of one cell: height = width = 1, types = I. A vote is rows x inner times
 * inner x columns; its rows * columns elements are the parent's pose. All addresses are on the device. */
typedef struct capsedge_cuda_routing {
  int32_t operation;
  int32_t type;          /* of every input and output but the weight: FLOAT or FLOAT16 */
  int32_t weight_type;   /* FLOAT, FLOAT16 or INT8 */
  int32_t images;
  int32_t height, width, types;
  int32_t kernel_height, kernel_width, stride_rows, stride_columns;
  int32_t grid_height, grid_width; /* output positions */
  int32_t parents, rows, inner, columns;
  int32_t iterations;   /* attention: 1; self-attention: 2, the sum of all votes and the routing */
  int32_t leaky, coordinates, shared; /* 0 or 1 */
  int32_t normalize_activations, ones_first; /* EM: 0 or 1 */
  int32_t parent_images;              /* attention: images, or 1 for the same parents everywhere */
  /* Dynamic routing and routing of votes; 0 or 1. */
  int32_t over_children, replace, normalize, elementwise;
  int32_t one_weight;   /* dynamic: one for all children */
  int32_t vote_biases;  /* dynamic: 0 none, 1 for all children, or one for each */
  float variance_epsilon, activation_epsilon, cost_epsilon; /* EM: 0 or more; the first 0 for epsilon */
  float epsilon, agreement_scale;     /* the scale: of dynamic routing, votes, attention */
  float inverse_temperatures[CAPSEDGE_CUDA_MAX_ITERATIONS];
  const void* pose;             /* u of dynamic routing and self-attention; votes [images][types][parents][columns], whose inner is 1 */
  const void* activation;       /* EM */
  const void* parent;           /* attention */
  const void* weight;           /* null for votes */
  const float* weight_scale;    /* [parents][columns] of an INT8 weight */
  const void* vote_bias;        /* dynamic [vote_biases][parents][columns] */
  const void* log_prior;        /* dynamic, votes */
  const void* scale;            /* attention */
  const void* bias;             /* dynamic, votes [parents][columns], attention [rows * columns],
                                   self-attention [types][parents]: added to couplings */
  const void* beta_u;
  const void* beta_a;           /* EM */
  const void* additions;        /* EM: [height][width][rows * columns], added to votes; null for none */
  void* out_pose;
  void* out_activation;         /* EM */
  int32_t scheme;               /* AUTO; the others are for tests */
  int32_t multiprocessors;      /* of the GPU; 0 asks the current one; without one, for any */
} capsedge_cuda_routing;

/* Loads the kernels from a fat binary (`make cuda`), once per process for all its GPUs; the same file again is no error,
 * another one is. Uses the CUDA runtime that the process has, or else finds one: a file that CAPSEDGE_CUDART names, or
 * libcudart.so.13 or .12, with the driver's help before CUDA 12.8. A driver of CUDA 12 takes the machine code for its GPU
 * that lies beside the file (kernels.cuda12.sm87.cubin), if there is any. Returns 0, or 1 with a sentence in `error`: no
 * CUDA runtime, no GPU, a driver that is too old, a file that is missing, damaged or without code for the current GPU.
 * Code for a GPU that is newer than the file is compiled by the driver, at the first use. Call it before the functions
 * that queue work. */
CAPSEDGE_CUDA_EXPORT int capsedge_cuda_load(const char* path, char* error, size_t error_size);

/* Multiprocessors of the current GPU. Some power modes of a Jetson, or partitions of a GPU, have fewer. 0: there is no
 * GPU. CAPSEDGE_CUDA_OLD_DRIVER: there is one, but its driver is too old for the CUDA version that this was built with.
 * */
#define CAPSEDGE_CUDA_OLD_DRIVER (-1)
CAPSEDGE_CUDA_EXPORT int32_t capsedge_cuda_multiprocessors(void);

/* Bytes of scratch memory on the device that suffice for a layer with this many images or fewer; at least 1, aligned to
 * 256. They depend only on the shapes and the multiprocessors. -1: invalid layer. */
CAPSEDGE_CUDA_EXPORT int64_t capsedge_cuda_workspace(const capsedge_cuda_routing* layer);

/* Both return 0, or 1 with a sentence in `error`. */
CAPSEDGE_CUDA_EXPORT int capsedge_cuda_route(const capsedge_cuda_routing* layer, void* workspace, int64_t workspace_bytes,
                                             void* stream, char* error, size_t error_size);

/* x and y are [outer][size][inner], the pose along `size`. */
CAPSEDGE_CUDA_EXPORT int capsedge_cuda_squash(const void* x, void* y, int64_t outer, int32_t size, int64_t inner,
                                              float epsilon, int32_t type, void* stream, char* error, size_t error_size);

/* Which kernel a layer gets, in words: for reports. Valid until the next call of the same thread. */
CAPSEDGE_CUDA_EXPORT const char* capsedge_cuda_describe(const capsedge_cuda_routing* layer);

#ifdef __cplusplus
}
#endif

#endif
