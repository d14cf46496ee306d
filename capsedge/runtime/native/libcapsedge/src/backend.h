// What runs a model: a common interface, so that the rest of the library does not depend on ONNX Runtime.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capsedge.h"
#include "failure.h"
#include "onnx_file.h"
#include "engine_metadata.h"

namespace capsedge::libcapsedge {

struct Port {
  std::string name;
  int32_t type = CAPSEDGE_OTHER;
  std::vector<int64_t> shape;  // -1: free
};

// An input or output of a run: values in memory of the caller.
struct Value {
  size_t port = 0;
  void* data = nullptr;
  size_t bytes = 0;  // of an output: the room
  int32_t type = CAPSEDGE_OTHER;
  int32_t rank = 0;
  int64_t shape[CAPSEDGE_MAX_RANK] = {};
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual const std::string& version() const = 0;
  virtual const std::vector<Port>& inputs() const = 0;
  virtual const std::vector<Port>& outputs() const = 0;

  // Of one run; largest_batch 0: any.
  virtual int64_t smallest_batch() const { return 1; }
  virtual int64_t largest_batch() const { return 0; }
  // Why runs on a GPU do not use CUDA graphs; null if they do, and without a GPU.
  virtual const char* no_graph_reason() const { return nullptr; }

  // All inputs, which have been checked, and the outputs wanted. An output whose type, rank and shape are set has the
  // room for it; else these are set here, and what does not fit its room is a Failure (CAPSEDGE_USAGE). Called from any
  // number of threads at once; allocates nothing itself.
  virtual void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const = 0;

  // The same on memory of the backend's GPU, in the order of a cudaStream_t; may return once the work is queued.
  virtual void run_on_stream(const Value*, size_t, Value*, size_t, void*) const {
    fail_usage("The model does not run on a GPU.", "It was opened on the CPU.",
               "Use capsedge_run, or open it with CAPSEDGE_PROVIDER_CUDA; or open an engine of `capsedge build`.");
  }
};

// How an ONNX file runs.
struct OpenOnnx {
  int32_t threads = 0;
  std::string library;             // ONNX Runtime's, as the caller named it, or empty
  std::optional<int32_t> gpu;      // none: the CPU
  std::vector<std::string> nodes;  // types of the file's capsedge nodes that get kernels; the others run as their bodies
  std::string kernels;             // file of the GPU's code, for kernels of the CUDA provider
  capsedge_graphs graphs = CAPSEDGE_GRAPHS_AUTO;

  bool on_gpu() const { return gpu.has_value(); }
};

// `name` is what errors call the model.
std::unique_ptr<Backend> open_onnxruntime(std::string_view model, const std::string& name, const OpenOnnx& how);

// Refuses a file from before bodies had names of their own, on an ONNX Runtime that would confuse its function bodies.
void check_overloads(const OnnxFile& file, const std::string& name, const OpenOnnx& how);

struct OpenEngine {
  int32_t device = 0;
  std::string library;            // TensorRT's
  std::vector<std::string> keep;  // outputs to show; empty: all
  size_t contexts = 0;            // runs at the same time; 0: the default
  bool graphs = true;
};
// `outputs` receives the names of all outputs.
std::unique_ptr<Backend> open_tensorrt(std::string_view engine, const std::string& name, const EngineMetadata& engine_metadata,
                                       const OpenEngine& how, std::vector<std::string>& outputs);

// Bytes of an element; 0 for CAPSEDGE_OTHER.
size_t element_bytes(int32_t type);
const char* type_name(int32_t type);

// Sets type, shape and bytes of an output. Throws Failure (CAPSEDGE_USAGE) where it has no room for them.
void give_shape(Value& output, const std::string& name, int32_t type, const int64_t* shape, size_t rank);

// "[N, 1, 28, 28]": -1 is N.
std::string shape_text(const int64_t* shape, size_t rank);

// "a, b".
std::string joined(const std::vector<std::string>& names);

}  // namespace capsedge::libcapsedge
