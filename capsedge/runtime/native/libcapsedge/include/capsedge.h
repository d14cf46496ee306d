/* capsedge: runs exported capsule networks in C, C++ and any language that can call C. docs/how-to/libcapsedge.md is the
 * guide. The comment of each function ends with an example, in which check() ends the program if the status is not NULL.
 *
 * Statuses. Every function that can fail returns NULL for success, or a status that the caller releases with
 * capsedge_status_release. A null pointer, a closed handle or a handle of another kind always gives CAPSEDGE_USAGE. The
 * library never ends the process, never prints, and throws no exceptions.
 *
 * Ownership. The library copies what it is given; nothing the caller passes has to outlive the call. Strings and
 * arrays that it returns belong to the session or to the prediction. They are valid until the session is closed, or
 * until the prediction is closed or passed to capsedge_predict again. The caller frees statuses, sessions and
 * predictions with their own functions, and nothing else.
 *
 * Threads. A session may be used from any number of threads at once, and closed while others use it: their calls
 * finish, and later calls get a status. A prediction belongs to one thread at a time; give every thread its own. Handles
 * are checked: a closed one, or one of the wrong kind, gives CAPSEDGE_USAGE.
 *
 * Growth. Structures with a first member `size` may grow at their end; set it to sizeof the structure, which the
 * *_INIT macros do. Zero in every other member means the default. */
#ifndef CAPSEDGE_H_
#define CAPSEDGE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(_WIN32)
#define CAPSEDGE_API __attribute__((visibility("default")))
#define CAPSEDGE_CHECKED __attribute__((warn_unused_result))
#else
#define CAPSEDGE_API
#define CAPSEDGE_CHECKED
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CAPSEDGE_VERSION "0.1.0"

/* ---- Statuses ---- */

/* A failure: a code and a message. NULL is success. */
typedef struct capsedge_status capsedge_status;

/* spec: exit codes */
/* The numbers are the exit codes of the command line (docs/reference/cli.md). */
typedef enum capsedge_code {
  CAPSEDGE_OK = 0,
  CAPSEDGE_INTERNAL = 1,    /* a bug in capsedge */
  CAPSEDGE_USAGE = 2,       /* the call is wrong, or the file is not there */
  CAPSEDGE_ENVIRONMENT = 3, /* ONNX Runtime or TensorRT is missing or too old, or memory ran out */
  CAPSEDGE_UNSUPPORTED = 5, /* the model is intact, but this library cannot run it */
  CAPSEDGE_ARTEFACT = 6     /* the model file is damaged, foreign, for another machine, or gives NaN or infinite values */
} capsedge_code;
/* /spec */

/** The kind of a failure: a capsedge_code, which is also the exit code of the command line. CAPSEDGE_OK for NULL.
 * Ownership: the status stays the caller's.
 * Threads: any. Errors: none.
 *
 *     capsedge_session* model = NULL;
 *     capsedge_status* status = capsedge_open("missing.onnx", NULL, &model);
 *     if (capsedge_status_code(status) == CAPSEDGE_USAGE) puts("no such file");
 *     capsedge_status_release(status);
 */
CAPSEDGE_API capsedge_code capsedge_status_code(const capsedge_status* status);

/** What failed, why, and how to fix it, one line each; "" for NULL. Safe to print: names from files are escaped.
 * Ownership: the text belongs to the status and goes with it.
 * Threads: any. Errors: none.
 *
 *     capsedge_session* model = NULL;
 *     capsedge_status* status = capsedge_open("missing.onnx", NULL, &model);
 *     if (status != NULL) fprintf(stderr, "%s\n", capsedge_status_message(status));
 *     capsedge_status_release(status);
 */
CAPSEDGE_API const char* capsedge_status_message(const capsedge_status* status);

/** Free a status and its message; NULL is allowed.
 * Ownership: returns to the library.
 * Threads: any, once per status. Errors: none.
 *
 *     capsedge_status_release(capsedge_warm_up(session, 1, 1)); // to ignore a failure
 */
CAPSEDGE_API void capsedge_status_release(capsedge_status* status);

/** The version of the library that runs, such as "0.1.0"; CAPSEDGE_VERSION is that of the header.
 * Ownership: the text is a constant of the library.
 * Threads: any. Errors: none.
 *
 *     if (strcmp(capsedge_version(), CAPSEDGE_VERSION) != 0) puts("built with another version");
 */
CAPSEDGE_API const char* capsedge_version(void);

/* ---- Sessions ---- */

/* A loaded model. */
typedef struct capsedge_session capsedge_session;

/* What runs the nodes of capsedge's own operators. */
typedef enum capsedge_ops {
  CAPSEDGE_OPS_AUTO = 0,  /* the fused kernels, if the model has such nodes; on a GPU, those that fit the kernels */
  CAPSEDGE_OPS_FUSED = 1, /* the same; an error if the model has none or, on a GPU, one that does not fit */
  CAPSEDGE_OPS_PORTABLE = 2 /* the function bodies in the file */
} capsedge_ops;

/* What runs an ONNX file in ONNX Runtime. An engine has no use for it. */
typedef enum capsedge_provider {
  CAPSEDGE_PROVIDER_CPU = 0,
  CAPSEDGE_PROVIDER_CUDA = 1 /* CUDAExecutionProvider of an ONNX Runtime for GPUs. All of the model runs there, or it is refused */
} capsedge_provider;

/* Whether calls on a GPU replay CUDA graphs, from the second call of a batch size on. */
typedef enum capsedge_graphs {
  CAPSEDGE_GRAPHS_AUTO = 0, /* where the model can */
  CAPSEDGE_GRAPHS_ON = 1,   /* an ONNX file that cannot is refused */
  CAPSEDGE_GRAPHS_OFF = 2
} capsedge_graphs;

/* How to open a model. All zeros are the defaults. */
typedef struct capsedge_open_options {
  size_t size;
  int32_t threads; /* of one inference; 0: one per core that the process may use */
  int32_t ops;     /* capsedge_ops */
  /* ONNX Runtime's library, or the folder it is in. NULL: what the environment variable CAPSEDGE_ONNXRUNTIME names,
   * else the Python package's beside this library, else libonnxruntime.so of the system. The first session of a process
   * decides for all. */
  const char* onnxruntime;
  /* Names of the outputs to compute; NULL: all of them. Others are cut off the graph before it is loaded, with all that
   * only they need. A program that only predicts names "lengths" (or "logits") and "poses", and saves the decoder. An
   * engine computes all that it was built with; the others are only not shown. */
  const char* const* outputs;
  size_t output_count;
  /* TensorRT's library, or the folder it is in, for engines. NULL: what the environment variable CAPSEDGE_TENSORRT
   * names, else the system's. */
  const char* tensorrt;
  int32_t device; /* number of the GPU, of an engine and with CAPSEDGE_PROVIDER_CUDA; 0 on the CPU */
  size_t contexts; /* of an engine: calls that run at the same time, each with its own memory on the GPU; further ones
                    * wait. 0: 4 */
  int32_t provider; /* capsedge_provider */
  int32_t graphs;   /* capsedge_graphs */
  /* With CAPSEDGE_PROVIDER_CUDA: the file of the CUDA kernels, kernels.fatbin of the package capsedge-cuda, which must be of this
   * library's version. NULL: what the environment variable CAPSEDGE_CUDA_KERNELS names, else kernels.fatbin beside this
   * library, else the Python package's. The first session with kernels decides for all of the process. */
  const char* cuda_kernels;
} capsedge_open_options;
#define CAPSEDGE_OPEN_OPTIONS_INIT {sizeof(capsedge_open_options), 0, 0, NULL, NULL, 0, NULL, 0, 0, 0, 0, NULL}

/** Load a model file: ONNX or, if this library was built with TensorRT, an engine of `capsedge build`, whose name ends in
 * ".engine" and whose metadata file is in the same folder. `options` may be NULL.
 * Ownership: the caller closes *session with capsedge_close; path and options are not kept. NULL on failure.
 * Threads: any.
 * Errors: CAPSEDGE_USAGE for a file that is missing or an option that is wrong, CAPSEDGE_ENVIRONMENT without ONNX Runtime or
 * TensorRT, CAPSEDGE_ARTEFACT for a file that is damaged or for another machine, CAPSEDGE_UNSUPPORTED for one that cannot run.
 *
 *     capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
 *     options.threads = 1;
 *     capsedge_session* model = NULL;
 *     check(capsedge_open("digits.onnx", &options, &model));
 *     check(capsedge_close(model));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_open(const char* path, const capsedge_open_options* options,
                                                             capsedge_session** session);

/** The same for an ONNX file in memory.
 * Ownership: as capsedge_open; `data` is read during the call and may be freed after it.
 * Threads: any. Errors: as capsedge_open.
 *
 *     static unsigned char data[1 << 20]; // from flash, say
 *     capsedge_session* model = NULL;
 *     capsedge_status* status = capsedge_open_bytes(data, sizeof data, NULL, &model);
 *     if (capsedge_status_code(status) == CAPSEDGE_ARTEFACT) puts("this is no ONNX file");
 *     capsedge_status_release(status);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_open_bytes(const void* data, size_t bytes,
                                                                   const capsedge_open_options* options,
                                                                   capsedge_session** session);

/** Close a session. Calls already running in other threads finish, and the last one frees the memory; later calls fail.
 * Ownership: returns to the library, with its strings.
 * Threads: any, once per session. Errors: CAPSEDGE_USAGE for a session that is closed or NULL.
 *
 *     capsedge_session* model = NULL;
 *     check(capsedge_open("digits.onnx", NULL, &model));
 *     check(capsedge_close(model));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_close(capsedge_session* session);

/* What is known about a loaded model. Strings belong to the session; those of the metadata are NULL in a file of
 * another tool, which can run but not predict. */
typedef struct capsedge_description {
  size_t size;
  const char* backend;         /* "onnxruntime" or "tensorrt" */
  const char* backend_version; /* "1.31.1" */
  const char* ops;             /* "fused", "portable", or "mixed": with routing in standard operators beside fused ones */
  size_t input_count;
  size_t output_count;
  int64_t batch; /* images that the file is fixed to; -1: any number */
  const char* architecture;
  const char* routing;
  const char* task; /* "single-label", "multi-label", "regression" or "segmentation" */
  const char* precision;
  int32_t iterations;
  int32_t class_count;    /* 0 if the file does not state it */
  const char* score_kind; /* "length" or "probability"; NULL: the model cannot predict classes */
  int64_t smallest_batch; /* of one run */
  int64_t largest_batch;  /* of one run; 0: any */
  const char* no_graph_reason; /* why calls on a GPU do not run as CUDA graphs; NULL while they may, and on the CPU */
  size_t value_count; /* of a regression; 0: the model cannot predict values */
  const char* no_kernel_reason; /* why capsule operators of an ONNX file run as function bodies on a GPU although
                                 * CAPSEDGE_OPS_AUTO was asked for, such as that the kernels' file is not there; NULL if none does */
} capsedge_description;
#define CAPSEDGE_DESCRIPTION_INIT \
  {sizeof(capsedge_description), NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, 0, 0, NULL, 0, NULL}

/** What is known about a loaded model.
 * Ownership: the structure is the caller's, its strings are the session's.
 * Threads: any. Errors: CAPSEDGE_USAGE for a closed session or a wrong size.
 *
 *     capsedge_description about = CAPSEDGE_DESCRIPTION_INIT;
 *     check(capsedge_describe(session, &about));
 *     printf("%s, %d classes\n", about.task, (int)about.class_count);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_describe(capsedge_session* session,
                                                                 capsedge_description* description);

/** The name of a class; its number if the file does not name classes.
 * Ownership: the text belongs to the session.
 * Threads: any. Errors: CAPSEDGE_USAGE for an index that is out of range.
 *
 *     const char* name = NULL;
 *     check(capsedge_class_name(session, 7, &name));
 *     printf("class 7 is called %s\n", name);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_class_name(capsedge_session* session, int32_t index,
                                                                   const char** name);

/** The name of a regression's value, such as "yaw", and its unit, such as "degrees" ("" if the file does not state it). `unit`
 * may be NULL.
 * Ownership: both texts belong to the session.
 * Threads: any. Errors: CAPSEDGE_USAGE for an index that is out of range; a classification has no values.
 *
 *     capsedge_description about = CAPSEDGE_DESCRIPTION_INIT;
 *     check(capsedge_describe(session, &about));
 *     for (size_t k = 0; k < about.value_count; ++k) {
 *       const char *name = NULL, *unit = NULL;
 *       check(capsedge_value_name(session, k, &name, &unit));
 *       printf("%s in %s\n", name, unit);
 *     }
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_value_name(capsedge_session* session, size_t index,
                                                                   const char** name, const char** unit);

/** A metadata property exactly as stored in the file (capsedge's own are JSON); NULL if there is none with this name.
 * Ownership: the text belongs to the session.
 * Threads: any. Errors: CAPSEDGE_USAGE for a closed session.
 *
 *     const char* parity = NULL;
 *     check(capsedge_property(session, "capsedge.parity", &parity));
 *     printf("%s\n", parity != NULL ? parity : "not compared");
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_property(capsedge_session* session, const char* key,
                                                                 const char** value);

/* ---- Tensors ---- */

/* spec: limits and types */
/* Limits of a tensor and of a run. */
enum { CAPSEDGE_MAX_RANK = 8, CAPSEDGE_MAX_TENSORS = 64 };

/* Element types, with ONNX's numbers. */
typedef enum capsedge_type {
  CAPSEDGE_OTHER = 0, /* a type that this library does not run: strings, sequences, ... */
  CAPSEDGE_FLOAT32 = 1,
  CAPSEDGE_UINT8 = 2,
  CAPSEDGE_INT8 = 3,
  CAPSEDGE_UINT16 = 4,
  CAPSEDGE_INT16 = 5,
  CAPSEDGE_INT32 = 6,
  CAPSEDGE_INT64 = 7,
  CAPSEDGE_BOOL = 9,
  CAPSEDGE_FLOAT16 = 10,
  CAPSEDGE_FLOAT64 = 11,
  CAPSEDGE_UINT32 = 12,
  CAPSEDGE_UINT64 = 13
} capsedge_type;
/* /spec */

/* An input or output of a model. */
typedef struct capsedge_port {
  size_t size;
  const char* name; /* belongs to the session */
  int32_t type;
  int32_t rank;
  int64_t shape[CAPSEDGE_MAX_RANK]; /* -1: free */
} capsedge_port;
#define CAPSEDGE_PORT_INIT {sizeof(capsedge_port), NULL, 0, 0, {0}}

/** An input of the model, from 0 to input_count - 1 of capsedge_describe.
 * Ownership: the structure is the caller's, its name the session's.
 * Threads: any. Errors: CAPSEDGE_USAGE for an index that is out of range or a wrong size.
 *
 *     capsedge_port port = CAPSEDGE_PORT_INIT;
 *     check(capsedge_input(session, 0, &port));
 *     printf("%s has %d dimensions\n", port.name, (int)port.rank);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_input(capsedge_session* session, size_t index,
                                                              capsedge_port* port);

/** An output of the model, from 0 to output_count - 1 of capsedge_describe.
 * Ownership, threads, errors: as capsedge_input.
 *
 *     capsedge_port port = CAPSEDGE_PORT_INIT;
 *     check(capsedge_output(session, 0, &port));
 *     if (port.type == CAPSEDGE_FLOAT32) printf("%s are floats\n", port.name);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_output(capsedge_session* session, size_t index,
                                                               capsedge_port* port);

/* Contiguous values in the caller's memory. */
typedef struct capsedge_tensor {
  const char* name; /* NULL: the input or output at the same position in the model */
  void* data;
  size_t bytes; /* size of the values; for an output, the capacity on entry and the bytes written on return */
  int32_t type; /* of an output: set on return */
  int32_t rank; /* of an output: set on return */
  int64_t shape[CAPSEDGE_MAX_RANK];
} capsedge_tensor;

/** Run the model on all its inputs and write the outputs that are listed into the caller's memory. Types, shapes and
 * capacities are checked; float inputs must be finite.
 * Ownership: inputs and outputs are the caller's, and are not kept.
 * Threads: any number at once, each with its own outputs.
 * Errors: CAPSEDGE_USAGE for a name, type, shape, size or value that is wrong; CAPSEDGE_ENVIRONMENT without memory;
 * CAPSEDGE_ARTEFACT for a model that computes no numbers.
 *
 *     static float pixels[28 * 28], scores[10];
 *     capsedge_tensor input = {"images", pixels, sizeof pixels, CAPSEDGE_FLOAT32, 4, {1, 1, 28, 28}};
 *     capsedge_tensor output = {"lengths", scores, sizeof scores, 0, 0, {0}};
 *     check(capsedge_run(session, &input, 1, &output, 1));
 *     printf("[%d, %d]\n", (int)output.shape[0], (int)output.shape[1]);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_run(capsedge_session* session, const capsedge_tensor* inputs,
                                                            size_t input_count, capsedge_tensor* outputs,
                                                            size_t output_count);

/** The same for a session on a GPU, on memory of it: in the order of `stream` (a cudaStream_t; NULL: the legacy default
 * stream). An engine does not wait for it; with an ONNX file, the call returns when the outputs are written, because ONNX
 * Runtime waits for them. Types, shapes and capacities are checked as in capsedge_run; values are not.
 * Ownership: inputs and outputs must stay alive and unchanged until the stream has passed the run.
 * Threads: any number at once; calls wait if all contexts of an engine are busy.
 * Errors: as capsedge_run; CAPSEDGE_USAGE for a session on the CPU, and for memory of another kind.
 *
 *     capsedge_tensor input = {NULL, device_images, 784 * sizeof(float), CAPSEDGE_FLOAT32, 4, {1, 1, 28, 28}};
 *     capsedge_tensor output = {"lengths", device_lengths, 10 * sizeof(float), 0, 0, {0}};
 *     capsedge_status* status = capsedge_run_on_stream(session, &input, 1, &output, 1, stream);
 *     if (status != NULL) puts(capsedge_status_message(status));
 *     capsedge_status_release(status);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_run_on_stream(capsedge_session* session,
                                                                      const capsedge_tensor* inputs, size_t input_count,
                                                                      capsedge_tensor* outputs, size_t output_count,
                                                                      void* stream);

/** Run `runs` times on zeros (`batch` of them if the batch is free), so that the first real call finds memory and threads
 * ready.
 * Ownership: nothing changes hands.
 * Threads: any. Errors: as capsedge_run; CAPSEDGE_UNSUPPORTED for a model with other free sizes than the batch.
 *
 *     check(capsedge_warm_up(session, 1, 3));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_warm_up(capsedge_session* session, int64_t batch, int32_t runs);

/* ---- Images ---- */

/* Pixels of the caller: rows of `width` pixels of `channels` values. Grey 1, grey and alpha 2, RGB 3, RGB and alpha 4;
 * a model with another number of channels takes exactly that many. */
typedef struct capsedge_image {
  const void* pixels;
  int32_t type; /* CAPSEDGE_UINT8, CAPSEDGE_UINT16, CAPSEDGE_BOOL (0 or 1), or CAPSEDGE_FLOAT32 from 0 to 1 */
  int32_t height;
  int32_t width;
  int32_t channels;
  int64_t stride; /* bytes from one row to the next, negative for an image stored bottom-up; 0: no gaps */
} capsedge_image;

/* How pixels become an input: docs/reference/runtime.md, "Images". */
typedef struct capsedge_preprocessing {
  size_t size;
  int32_t height;
  int32_t width;
  int32_t channels;
  double scale;
  const double* mean; /* one value, or one per channel */
  const double* std;
  size_t mean_count;
  size_t std_count;
  const char* resize; /* "stretch", "pad", "crop" or "center" */
  const char* per_image; /* "standardize", "min-max", or "" (or NULL): nothing depends on the image */
  int32_t channels_last; /* 1: the input is [height, width, channels] */
  int32_t bgr;           /* 1: the input is blue, green, red; images are always passed as red, green, blue */
} capsedge_preprocessing;
#define CAPSEDGE_PREPROCESSING_INIT {sizeof(capsedge_preprocessing), 0, 0, 0, 0, NULL, NULL, 0, 0, NULL, NULL, 0, 0}

/** How an image becomes the input, as stated in the metadata of the model file.
 * Ownership: the structure is the caller's, its strings and arrays are the session's.
 * Threads: any. Errors: CAPSEDGE_ARTEFACT for a file that does not state it.
 *
 *     capsedge_preprocessing how = CAPSEDGE_PREPROCESSING_INIT;
 *     check(capsedge_preprocessing_of(session, &how));
 *     printf("%d x %d, %s\n", (int)how.width, (int)how.height, how.resize);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_preprocessing_of(capsedge_session* session,
                                                                         capsedge_preprocessing* preprocessing);

/** One image as floats [channels, height, width], or [height, width, channels] if `channels_last` is set: the same bits as
 * Python's. `count`: the capacity of `values`. `invert`: dark ink on a light background.
 * Ownership: all memory is the caller's.
 * Threads: any. Errors: CAPSEDGE_USAGE for an image or a preprocessing that is wrong, or if `values` is too small.
 *
 *     capsedge_preprocessing how = CAPSEDGE_PREPROCESSING_INIT;
 *     check(capsedge_preprocessing_of(session, &how));
 *     static float values[28 * 28];
 *     check(capsedge_prepare(&how, &image, 0, values, 28 * 28));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_prepare(const capsedge_preprocessing* preprocessing,
                                                                const capsedge_image* image, int32_t invert,
                                                                float* values, size_t count);

/* ---- Frames of cameras ---- */

/* The layout of a frame in memory. */
typedef enum capsedge_frame_format {
  CAPSEDGE_FRAME_NV12 = 0, /* plane 0: Y; plane 1: pairs of U and V, one for each 2 x 2 pixels */
  CAPSEDGE_FRAME_YUYV = 1, /* plane 0: Y U Y V for every two pixels of a row; also named YUY2 */
  CAPSEDGE_FRAME_BGR = 2   /* plane 0: blue, green, red; `matrix` and `range` do not matter */
} capsedge_frame_format;

/* How Y, U and V were made of red, green and blue. */
typedef enum capsedge_frame_matrix {
  CAPSEDGE_MATRIX_BT601 = 0, /* webcams, and video with fewer than 720 lines */
  CAPSEDGE_MATRIX_BT709 = 1  /* HD video */
} capsedge_frame_matrix;

/* The values of Y, U and V. */
typedef enum capsedge_frame_range {
  CAPSEDGE_RANGE_LIMITED = 0, /* Y from 16 to 235, U and V from 16 to 240 */
  CAPSEDGE_RANGE_FULL = 1     /* from 0 to 255, as in JPEG */
} capsedge_frame_range;

/* A frame of the caller. */
typedef struct capsedge_frame {
  size_t size;
  int32_t format; /* capsedge_frame_format */
  int32_t matrix; /* capsedge_frame_matrix */
  int32_t range;  /* capsedge_frame_range */
  int32_t height;
  int32_t width;
  const uint8_t* planes[2]; /* the second for NV12 only */
  int64_t strides[2]; /* bytes from one row of a plane to the next, negative for a frame stored bottom-up; 0: no gaps */
} capsedge_frame;
#define CAPSEDGE_FRAME_INIT {sizeof(capsedge_frame), 0, 0, 0, 0, 0, {NULL, NULL}, {0, 0}}

/** A frame as RGB [height, width, 3], the pixels of a capsedge_image. In whole numbers, rounded to the nearest; U and V are
 * repeated for the pixels that share them. `bytes`: the capacity of `rgb`.
 * Ownership: all memory is the caller's.
 * Threads: any. Errors: CAPSEDGE_USAGE for a frame that is wrong, or if `rgb` is too small.
 *
 *     static unsigned char yuyv[28 * 28 * 2], rgb[28 * 28 * 3];
 *     capsedge_frame frame = CAPSEDGE_FRAME_INIT;
 *     frame.format = CAPSEDGE_FRAME_YUYV;
 *     frame.height = frame.width = 28;
 *     frame.planes[0] = yuyv;
 *     check(capsedge_frame_to_rgb(&frame, rgb, sizeof rgb));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_frame_to_rgb(const capsedge_frame* frame, uint8_t* rgb, size_t bytes);

/* ---- Predictions ---- */

/* Labels, scores and poses (or values) of a batch of images, and the memory to compute them in, which is reused. */
typedef struct capsedge_prediction capsedge_prediction;

/** Make an empty prediction, to predict into.
 * Ownership: the caller closes it with capsedge_prediction_close.
 * Threads: any; then one thread at a time. Errors: CAPSEDGE_ENVIRONMENT without memory.
 *
 *     capsedge_prediction* mine = NULL;
 *     check(capsedge_prediction_create(&mine));
 *     check(capsedge_prediction_close(mine));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_prediction_create(capsedge_prediction** prediction);

/** Free a prediction.
 * Ownership: returns to the library, with all results read from it.
 * Threads: the one that uses it. Errors: CAPSEDGE_USAGE for a prediction that is closed or NULL.
 *
 *     capsedge_prediction* mine = NULL;
 *     check(capsedge_prediction_create(&mine));
 *     check(capsedge_prediction_close(mine));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_prediction_close(capsedge_prediction* prediction);

/* Which labels a prediction lists, and how an image is read. All zeros are the defaults. */
typedef struct capsedge_predict_options {
  size_t size;
  int32_t top_k;         /* maximum number of labels; 0: no limit */
  int32_t use_threshold; /* only labels with a score of at least `threshold`, which is from 0 to 1 */
  double threshold;
  int32_t invert; /* dark ink on a light background */
} capsedge_predict_options;
#define CAPSEDGE_PREDICT_OPTIONS_INIT {sizeof(capsedge_predict_options), 0, 0, 0, 0}

/** Classify or segment images of any sizes, or compute the values of a regression, which takes no top_k and no threshold. Without both:
 * the best label of a single-label model, those with a score of at least 0.5 of a multi-label model. A segmentation takes no top_k; its
 * threshold, 0.5 by default, decides a mask of one class. `options` may be NULL.
 * Ownership: the images are the caller's and not kept; the prediction holds the results until the next capsedge_predict
 * with it.
 * Threads: any number at once on one session, each with its own prediction.
 * Errors: as capsedge_run; CAPSEDGE_ARTEFACT for a model that does not state how to predict.
 *
 *     capsedge_predict_options options = CAPSEDGE_PREDICT_OPTIONS_INIT;
 *     options.top_k = 3;
 *     check(capsedge_predict(session, &image, 1, &options, prediction));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_predict(capsedge_session* session, const capsedge_image* images,
                                                                size_t count, const capsedge_predict_options* options,
                                                                capsedge_prediction* prediction);

/* A class with its score and pose. */
typedef struct capsedge_label {
  const char* name;  /* belongs to the prediction */
  const float* pose; /* [pose_size], belongs to the prediction; NULL in a model without poses */
  double score;
  int32_t index;
} capsedge_label;

/* The result for one image. All memory belongs to the prediction. */
typedef struct capsedge_result {
  size_t size;
  const capsedge_label* labels; /* best first; equal scores in the order of their classes */
  size_t label_count;
  const double* scores; /* [class_count]; NULL for a regression and a segmentation */
  const float* poses;   /* [class_count, pose_size]; NULL in a model without poses */
  int32_t class_count;
  int32_t pose_size;
  const char* score_kind; /* "length" of the class's capsule, or "probability"; NULL for a regression and a segmentation */
  const double* values;   /* [value_count], of a regression; capsedge_value_name has their names and units */
  size_t value_count;     /* 0 for a classification */
  const char* atypical; /* why there is nothing to see in the image, by the criterion of the model (docs/reference/metadata.md), such as
                        * "less contrast than in any training image"; NULL if there is something, and in a model without a
                        * criterion. Labels, scores and values are as without it. Belongs to the library. */
  int32_t escalated; /* of a cascade (docs/how-to/cascade.md): 1 if its large network decided, 0 if the small one did; -1 for other models */
  const uint8_t* mask; /* [mask_height, mask_width] of a segmentation, in the image's own size: the class of each pixel, whose name is
                        * capsedge_class_name; 255 where the network did not see the image. NULL for other models */
  int32_t mask_height;
  int32_t mask_width;
} capsedge_result;
#define CAPSEDGE_RESULT_INIT {sizeof(capsedge_result), NULL, 0, NULL, NULL, 0, 0, NULL, NULL, 0, NULL, -1, NULL, 0, 0}

/** How many images the prediction holds.
 * Ownership: nothing changes hands.
 * Threads: the one that uses the prediction. Errors: CAPSEDGE_USAGE for a closed prediction.
 *
 *     size_t images = 0;
 *     check(capsedge_prediction_count(prediction, &images));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_prediction_count(capsedge_prediction* prediction,
                                                                         size_t* count);

/** The result for one image, from 0 to the count minus 1.
 * Ownership: the structure is the caller's, what it points to is the prediction's.
 * Threads: the one that uses the prediction. Errors: CAPSEDGE_USAGE for a number that is out of range.
 *
 *     check(capsedge_predict(session, &image, 1, NULL, prediction));
 *     capsedge_result result = CAPSEDGE_RESULT_INIT;
 *     check(capsedge_prediction_result(prediction, 0, &result));
 *     for (size_t k = 0; k < result.label_count; ++k) printf("%s %.4f\n", result.labels[k].name, result.labels[k].score);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_prediction_result(capsedge_prediction* prediction, size_t image,
                                                                          capsedge_result* result);

/* ---- Pictures of poses ---- */

/* What the decoder of a model takes and draws. */
typedef struct capsedge_decoder {
  size_t size;
  int32_t class_count; /* poses of an image */
  int32_t pose_size;   /* values of a pose */
  int32_t channels;    /* of a picture */
  int32_t height;
  int32_t width;
} capsedge_decoder;
#define CAPSEDGE_DECODER_INIT {sizeof(capsedge_decoder), 0, 0, 0, 0, 0}

/** The sizes of a model's decoder: that of a file of `capsedge export --with reconstruction`.
 * Ownership: the structure is the caller's.
 * Threads: any. Errors: CAPSEDGE_USAGE for a model without a decoder that needs only poses, and for an engine.
 *
 *     capsedge_decoder decoder = CAPSEDGE_DECODER_INIT;
 *     check(capsedge_decoder_of(session, &decoder));
 *     printf("%d x %d from %d values\n", (int)decoder.width, (int)decoder.height, (int)decoder.pose_size);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_decoder_of(capsedge_session* session, capsedge_decoder* decoder);

/** Draw pictures of poses; only the decoder runs. The picture of a class comes from its pose alone, as if all others
 * were zero. The same bits as Python's. Without `classes` (NULL): poses [count, class_count, pose_size] to pictures
 * [count, class_count, channels, height, width]. With them: one pose [count, pose_size] of class classes[k] each, to pictures
 * [count, channels, height, width]. `values`: the capacity of `pictures`. The first call loads the decoder.
 * Ownership: all memory is the caller's, and is not kept.
 * Threads: any number at once, each with its own pictures.
 * Errors: as capsedge_decoder_of; CAPSEDGE_USAGE for a wrong class, value or capacity; CAPSEDGE_ENVIRONMENT without memory.
 *
 *     static float pose[16], picture[28 * 28];
 *     const int32_t seven = 7;
 *     pose[3] = 0.25f;
 *     check(capsedge_decode(session, pose, &seven, 1, picture, 28 * 28));
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_decode(capsedge_session* session, const float* poses,
                                                               const int32_t* classes, size_t count, float* pictures,
                                                               size_t values);

/* ---- Counters ---- */

/* What a session has done since it was opened. Times are nanoseconds. */
typedef struct capsedge_counters {
  size_t size;
  uint64_t runs;    /* of the model, warm-up included */
  uint64_t images;  /* rows of all batches, filling included */
  uint64_t failed;  /* calls of capsedge_run and capsedge_predict that ended in a status */
  uint64_t prepare_ns; /* from pixels to inputs, all images together */
  uint64_t run_ns;     /* in the backend, all runs together; copies to and from a GPU included */
  uint64_t longest_run_ns;
} capsedge_counters;
#define CAPSEDGE_COUNTERS_INIT {sizeof(capsedge_counters), 0, 0, 0, 0, 0, 0}

/** The counters of a session. They are read one by one, so they may differ by a call while others run.
 * Ownership: the structure is the caller's.
 * Threads: any. Errors: CAPSEDGE_USAGE for a closed session or a wrong size.
 *
 *     capsedge_counters counters = CAPSEDGE_COUNTERS_INIT;
 *     check(capsedge_read_counters(session, &counters));
 *     if (counters.runs > 0) printf("%.3f ms\n", 1e-6 * (double)counters.run_ns / (double)counters.runs);
 */
CAPSEDGE_API CAPSEDGE_CHECKED capsedge_status* capsedge_read_counters(capsedge_session* session,
                                                                      capsedge_counters* counters);

#ifdef __cplusplus
}
#endif

#endif
