// A TensorRT engine, loaded: its inputs and outputs, and its execution contexts; capsedge/runtime/backends/tensorrt_engine.py, in C++.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend.h"
#include "cuda_runtime.h"
#include "tensorrt_library.h"

namespace capsedge::libcapsedge {

// A port's memory on the GPU and its pinned memory on the host.
class Buffer {
 public:
  Buffer(const Cuda& cuda, size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* device() const { return device_; }
  void* host() const { return host_; }
  size_t bytes() const { return bytes_; }

 private:
  const Cuda& cuda_;
  const size_t bytes_;
  void* device_;
  void* host_ = nullptr;
};

// The sizes of a run that an engine leaves free: the first axis, and other axes of the inputs, such as a history's.
struct Sizes {
  int64_t batch = 0, length = 0;
  bool operator==(const Sizes& other) const { return batch == other.batch && length == other.length; }
};

// The shapes of all ports in a run, in order.
struct Shapes {
  std::vector<nvinfer1::Dims> inputs, outputs, left_out;
};

// The memory of all ports, in order.
struct Buffers {
  std::vector<std::unique_ptr<Buffer>> inputs, outputs, left_out;
};

class TensorRtEngine {
 public:
  TensorRtEngine(const std::string& path, const EngineMetadata& engine_metadata, int32_t device, const std::string& library)
      : cuda(capsedge::libcapsedge::cuda()), device(device),
        smallest{engine_metadata.batch.smallest, engine_metadata.length.smallest},
        largest{engine_metadata.batch.largest, engine_metadata.length.largest}, path_(path), command_(engine_metadata.rebuild()),
        trt_(tensorrt(engine_metadata.portable, library)) {}

  // Compares the metadata file with this machine; the plugin library that the engine needs, or empty. Throws Failure.
  std::string check(const EngineMetadata& engine_metadata) const;

  // Shows the outputs to keep, all of them where these are empty. Called on the engine's GPU, as everything below. Throws
  // Failure.
  void load(std::string_view engine, const std::string& plugin, const std::vector<std::string>& keep);

  // Contexts are destroyed first.
  void unload() {
    engine_.reset();
    runtime_.reset();
  }
  // Drops the engine without calling TensorRT, when the GPU is gone or the process ends.
  void abandon() noexcept;

  const std::string& version() const { return trt_.version; }
  const std::string& path() const { return path_; }
  std::vector<std::string> output_names() const;  // of all outputs, including omitted ones

  // A context that computes in `scratch`, memory of `scratch_bytes` on the GPU; contexts that never run at the same time
  // may share it.
  std::unique_ptr<nvinfer1::IExecutionContext> new_context(void* scratch) const;
  // Sets a context to the sizes of a run; the shapes of all ports.
  Shapes infer(nvinfer1::IExecutionContext& context, const Sizes& sizes) const;
  Buffers new_buffers(const Shapes& shapes) const;
  // The same for a context that then runs in these buffers.
  Shapes bind(nvinfer1::IExecutionContext& context, const Sizes& sizes, const Buffers& buffers) const;
  bool accepts(nvinfer1::IExecutionContext& context, CudaStream stream) const;
  void enqueue(nvinfer1::IExecutionContext& context, CudaStream stream) const;

  // Opened before TensorRT, because some builds of it look for it among the open libraries.
  const Cuda& cuda;
  const int32_t device;
  const Sizes smallest, largest;  // that it was built for
  std::vector<Port> inputs, outputs, left_out;
  size_t scratch_bytes = 0;

 private:
  std::string build_again() const { return "Build it again: `" + command_ + "`."; }
  [[noreturn]] void fail(const std::string& what) const;
  Machine this_machine() const;
  void read_ports();
  void leave_out(const std::vector<std::string>& keep);
  void set_buffer(nvinfer1::IExecutionContext& context, const Port& port, const nvinfer1::Dims& dims, const Buffer& buffer) const;

  const std::string path_, command_;
  TensorRt& trt_;
  // The engine is destroyed before the runtime whose plugins it uses.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  mutable std::mutex creating_;
};

size_t bytes_of(const Port& port, const nvinfer1::Dims& dims);

}  // namespace capsedge::libcapsedge
