// TensorRT engines on device buffers with CUDA graphs: runtime/tensorrt_backend.py, in C++.
//
// One context, one stream and one set of buffers serve one call at a time; calls from several threads take different
// ones. The buffers have room for the largest batch, so their addresses never change.

#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "backend.h"
#include "cuda_runtime.h"
#include "failure.h"
#include "tensorrt_library.h"

namespace capsedge::embedding {

namespace {

int32_t type_of(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT: return CAPSEDGE_FLOAT32;
    case nvinfer1::DataType::kHALF: return CAPSEDGE_FLOAT16;
    case nvinfer1::DataType::kINT8: return CAPSEDGE_INT8;
    case nvinfer1::DataType::kUINT8: return CAPSEDGE_UINT8;
    case nvinfer1::DataType::kINT32: return CAPSEDGE_INT32;
    case nvinfer1::DataType::kINT64: return CAPSEDGE_INT64;
    case nvinfer1::DataType::kBOOL: return CAPSEDGE_BOOL;
    default: return CAPSEDGE_OTHER;
  }
}

std::vector<int64_t> shape_of(const nvinfer1::Dims& dims) {
  return std::vector<int64_t>(dims.d, dims.d + std::max(0, dims.nbDims));
}

nvinfer1::Dims dims_for(const Port& port, int64_t batch) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<int32_t>(port.shape.size());
  for (size_t i = 0; i < port.shape.size(); ++i) dims.d[i] = port.shape[i] < 0 ? batch : port.shape[i];
  return dims;
}

size_t bytes_for(const Port& port, int64_t batch) {
  size_t bytes = element_bytes(port.type);
  for (const int64_t d : port.shape) bytes *= static_cast<size_t>(d < 0 ? batch : d);
  return bytes;
}

// A port's memory on the GPU and, pinned, on the host.
class Buffer {
 public:
  Buffer(const Cuda& cuda, size_t bytes) : cuda_(cuda), device_(cuda.allocate(bytes)) {
    try {
      host_ = cuda.allocate_host(bytes);
    } catch (...) {
      cuda.free(device_);
      throw;
    }
  }
  ~Buffer() {
    cuda_.free(device_);
    cuda_.free_host(host_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* device() const { return device_; }
  void* host() const { return host_; }

 private:
  const Cuda& cuda_;
  void* device_;
  void* host_ = nullptr;
};

// What one call at a time uses.
class Slot {
 public:
  Slot(const Cuda& cuda, std::unique_ptr<nvinfer1::IExecutionContext> made)
      : cuda_(cuda), context(std::move(made)), stream(cuda.create_stream()) {}
  ~Slot() {
    try {
      cuda_.synchronize(stream);
    } catch (...) {  // what failed is over; the memory goes all the same
    }
    drop_graph();
    context.reset();
    cuda_.destroy_stream(stream);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  void drop_graph() {
    if (graph) cuda_.destroy_graph(graph);
    graph = nullptr;
  }

 private:
  const Cuda& cuda_;

 public:
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  const CudaStream stream;
  std::vector<std::unique_ptr<Buffer>> inputs, outputs, left_out;
  int64_t bound = 0;          // the batch that the context is set to and has run once
  CudaGraph graph = nullptr;  // captured for that batch
};

class TensorRtBackend : public Backend {
 public:
  TensorRtBackend(const std::string& path, const Passport& passport, int32_t device, const std::string& library)
      : path_(path), command_(passport.rebuild()), device_(device), smallest_(passport.smallest_batch),
        largest_(passport.largest_batch), cuda_(cuda()), trt_(tensorrt(library)) {}
  ~TensorRtBackend() override {
    try {
      const OnDevice on(cuda_, device_);
      free_.clear();
      engine_.reset();
      runtime_.reset();
    } catch (...) {
      // The GPU is gone, this process is a fork, or it ends and CUDA ended first. TensorRT must not be called then.
      for (std::unique_ptr<Slot>& slot : free_) static_cast<void>(slot.release());
      static_cast<void>(engine_.release());
      static_cast<void>(runtime_.release());
    }
  }

  // Apart from the constructor, so that what fails halfway is destroyed as above.
  void load(std::string_view engine, const Passport& passport, const std::vector<std::string>& keep) {
    const std::string plugin = passport.plugin_sha256.empty() ? "" : find_plugin();
    check_passport(path_, passport, this_machine(), plugin);
    const OnDevice on(cuda_, device_);
    trt_.logger.clear();
    runtime_.reset(trt_.create_runtime());
    if (!runtime_)
      throw Failure(CAPSEDGE_ENVIRONMENT, "TensorRT " + trt_.version + " does not start.", trt_.logger.words(),
                    "Look at `nvidia-smi` (on a Jetson: `tegrastats`).");
    if (!plugin.empty()) load_plugin(runtime_->getPluginRegistry(), plugin, trt_.logger);
    engine_.reset(runtime_->deserializeCudaEngine(engine.data(), engine.size()));
    if (!engine_)
      throw Failure(CAPSEDGE_ARTEFACT, "TensorRT " + trt_.version + " cannot load " + path_ + ".", trt_.logger.words(), build_again());
    read_ports();
    leave_out(keep);
    free_.push_back(new_slot());  // too little memory is found now, not at the first image
  }

  // Of all outputs, also those left out.
  std::vector<std::string> output_names() const {
    std::vector<std::string> names;
    for (const auto* ports : {&outputs_, &left_out_})
      for (const Port& port : *ports) names.push_back(port.name);
    return names;
  }

  const char* name() const override { return "tensorrt"; }
  const std::string& version() const override { return trt_.version; }
  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }
  int64_t smallest_batch() const override { return smallest_; }
  int64_t largest_batch() const override { return largest_; }
  const char* plain_because() const override { return plain_because_.load(std::memory_order_acquire); }

  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override {
    const int64_t batch = batch_of(inputs, input_count);
    for (size_t i = 0; i < output_count; ++i) shape(outputs[i], batch);
    const OnDevice on(cuda_, device_);
    std::unique_ptr<Slot> slot = take();  // one that a call fails in is not given back
    for (size_t i = 0; i < input_count; ++i) {
      const Buffer& buffer = *slot->inputs[inputs[i].port];
      if (inputs[i].bytes > 0) std::memcpy(buffer.host(), inputs[i].data, inputs[i].bytes);
      cuda_.to_device(buffer.device(), buffer.host(), inputs[i].bytes, slot->stream);
    }
    execute(*slot, batch);
    for (size_t i = 0; i < output_count; ++i) {
      const Buffer& buffer = *slot->outputs[outputs[i].port];
      cuda_.to_host(buffer.host(), buffer.device(), outputs[i].bytes, slot->stream);
    }
    cuda_.synchronize(slot->stream);
    for (size_t i = 0; i < output_count; ++i)
      if (outputs[i].bytes > 0) std::memcpy(outputs[i].data, slot->outputs[outputs[i].port]->host(), outputs[i].bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(slot));
  }

 private:
  std::string build_again() const { return "Build it again: `" + command_ + "`."; }

  Machine this_machine() const {
    const int count = cuda_.device_count();
    if (device_ < 0 || device_ >= count)
      throw Failure(CAPSEDGE_ENVIRONMENT, "There is no GPU " + std::to_string(device_) + ".",
                    "CUDA sees " + std::to_string(count) + " GPUs on this machine.", "`nvidia-smi` lists the GPUs.");
    utsname system{};
    uname(&system);
    return {trt_.version, cuda_.driver_version(), device_name(device_), cuda_.compute_capability(device_), system.machine};
  }

  void read_ports() {
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      Port port;
      port.name = engine_->getIOTensorName(i);
      port.type = type_of(engine_->getTensorDataType(port.name.c_str()));
      port.shape = shape_of(engine_->getTensorShape(port.name.c_str()));
      const bool free_behind = std::any_of(port.shape.begin() + (port.shape.empty() ? 0 : 1), port.shape.end(),
                                           [](int64_t d) { return d < 0; });
      if (port.type == CAPSEDGE_OTHER || free_behind || port.shape.size() > CAPSEDGE_MAX_RANK)
        throw Failure(CAPSEDGE_ARTEFACT, path_ + " cannot be run by capsedge.",
                      "'" + port.name + "' has the type " + type_name(port.type) + " and the shape " +
                          shape_text(port.shape.data(), port.shape.size()) + "; only the batch may be free.",
                      build_again());
      if (engine_->getTensorLocation(port.name.c_str()) != nvinfer1::TensorLocation::kDEVICE)
        throw Failure(CAPSEDGE_ARTEFACT, path_ + " cannot be run by capsedge.",
                      "'" + port.name + "' is a shape, which TensorRT keeps in the memory of the host.", build_again());
      const bool is_input = engine_->getTensorIOMode(port.name.c_str()) == nvinfer1::TensorIOMode::kINPUT;
      (is_input ? inputs_ : outputs_).push_back(std::move(port));
    }
  }

  // An engine computes all of its outputs. Those that are not wanted have memory too, but are not shown.
  void leave_out(const std::vector<std::string>& keep) {
    if (keep.empty()) return;
    const std::vector<std::string> names = output_names();
    for (const std::string& name : keep)
      if (std::find(names.begin(), names.end(), name) == names.end())
        fail_usage(path_ + " has no output '" + name + "'.", "Its outputs: " + joined(names) + ".", "Name some of these.");
    const auto kept = [&keep](const Port& port) { return std::find(keep.begin(), keep.end(), port.name) != keep.end(); };
    const auto rest = std::stable_partition(outputs_.begin(), outputs_.end(), kept);
    left_out_.assign(std::make_move_iterator(rest), std::make_move_iterator(outputs_.end()));
    outputs_.erase(rest, outputs_.end());
  }

  std::unique_ptr<Slot> new_slot() const {
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      context.reset(engine_->createExecutionContext());
    }
    if (context == nullptr)
      throw Failure(CAPSEDGE_ENVIRONMENT, "The GPU has too little memory for " + path_ + ".", trt_.logger.words(),
                    "Close other programs, or build with a smaller batch or workspace.");
    auto slot = std::make_unique<Slot>(cuda_, std::move(context));
    for (const Port& port : inputs_) slot->inputs.push_back(std::make_unique<Buffer>(cuda_, bytes_for(port, largest_)));
    for (const Port& port : outputs_) slot->outputs.push_back(std::make_unique<Buffer>(cuda_, bytes_for(port, largest_)));
    for (const Port& port : left_out_) slot->left_out.push_back(std::make_unique<Buffer>(cuda_, bytes_for(port, largest_)));
    return slot;
  }

  // A slot that nobody else uses.
  std::unique_ptr<Slot> take() const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Slot> slot = std::move(free_.back());
        free_.pop_back();
        return slot;
      }
    }
    return new_slot();
  }

  // The batch of a call, which the engine was built for.
  int64_t batch_of(const Value* values, size_t count) const {
    int64_t batch = -1;
    for (size_t i = 0; i < count; ++i) {
      const Port& port = inputs_[values[i].port];
      if (port.shape.empty() || port.shape[0] >= 0) continue;
      if (batch >= 0 && batch != values[i].shape[0])
        fail_usage("The inputs have batches of " + std::to_string(batch) + " and " + std::to_string(values[i].shape[0]) + " images.",
                   "Wanted: the same for all.");
      batch = values[i].shape[0];
    }
    if (batch < 0) return largest_;
    if (batch < smallest_ || batch > largest_)
      fail_usage("A batch of " + std::to_string(batch) + " images.",
                 path_ + " was built for " + std::to_string(smallest_) + " to " + std::to_string(largest_) + ".",
                 "Split the batch, or build the engine with another `--dynamic-batch`.");
    return batch;
  }

  void shape(Value& output, int64_t batch) const {
    const Port& port = outputs_[output.port];
    const size_t bytes = bytes_for(port, batch);
    if (bytes > output.bytes)
      fail_usage("Output '" + port.name + "' has no room.",
                 "It takes " + std::to_string(bytes) + " bytes; given: " + std::to_string(output.bytes) + ".");
    const nvinfer1::Dims dims = dims_for(port, batch);
    output.type = port.type;
    output.rank = dims.nbDims;
    std::copy_n(dims.d, dims.nbDims, output.shape);
    output.bytes = bytes;
  }

  // Puts the inference on the slot's stream. A graph belongs to the context as it was when captured, so another batch
  // drops it. The first run after a change is a plain one, as TensorRT wants; the second is captured, the others
  // launch it. What cannot be captured runs plainly for good.
  void execute(Slot& slot, int64_t batch) const {
    if (slot.bound != batch) {
      slot.drop_graph();
      slot.bound = 0;
      bind(slot, batch);
      enqueue(slot);
      slot.bound = batch;
      return;
    }
    if (slot.graph == nullptr && plain_because() == nullptr) {
      cuda_.synchronize(slot.stream);
      std::string why_not;
      slot.graph = cuda_.capture(slot.stream, why_not, [&] { return accepted(slot); });
      if (slot.graph == nullptr) run_plainly(std::move(why_not));
    }
    if (slot.graph != nullptr) cuda_.launch(slot.graph, slot.stream);
    else enqueue(slot);
  }

  void run_plainly(std::string why) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (plain_because() != nullptr) return;  // another thread was first
    plain_words_ = std::move(why);
    plain_because_.store(plain_words_.c_str(), std::memory_order_release);
  }

  void bind(Slot& slot, int64_t batch) const {
    nvinfer1::IExecutionContext& context = *slot.context;
    for (const Port& port : inputs_)
      if (!context.setInputShape(port.name.c_str(), dims_for(port, batch))) fail("take the input shape");
    for (size_t i = 0; i < inputs_.size(); ++i) set_address(context, inputs_[i], *slot.inputs[i]);
    for (size_t i = 0; i < outputs_.size(); ++i) set_address(context, outputs_[i], *slot.outputs[i]);
    for (size_t i = 0; i < left_out_.size(); ++i) set_address(context, left_out_[i], *slot.left_out[i]);
    const char* missing = nullptr;
    if (context.inferShapes(1, &missing) != 0) fail(std::string("infer its shapes") + (missing ? std::string(" without ") + missing : ""));
    for (const auto* ports : {&outputs_, &left_out_}) {
      for (const Port& port : *ports) {
        const std::vector<int64_t> found = shape_of(context.getTensorShape(port.name.c_str())), wanted = shape_of(dims_for(port, batch));
        if (found != wanted) fail("keep '" + port.name + "' in its buffer: it became " + shape_text(found.data(), found.size()));
      }
    }
  }

  void set_address(nvinfer1::IExecutionContext& context, const Port& port, const Buffer& buffer) const {
    if (!context.setTensorAddress(port.name.c_str(), buffer.device())) fail("take the address of '" + port.name + "'");
  }

  static bool accepted(Slot& slot) { return slot.context->enqueueV3(static_cast<cudaStream_t>(slot.stream)); }

  void enqueue(Slot& slot) const {
    if (!accepted(slot)) fail("run");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(CAPSEDGE_ARTEFACT, "The engine " + path_ + " could not " + what + ".", trt_.logger.words(), build_again());
  }

  const std::string path_, command_;
  const int device_;
  const int64_t smallest_, largest_;
  const Cuda& cuda_;  // opened first: some builds of TensorRT look for it among the libraries that are open
  TensorRt& trt_;
  // Contexts go before the engine, the engine before the runtime whose plugins it uses.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::vector<Port> inputs_, outputs_, left_out_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Slot>> free_;
  mutable std::string plain_words_;
  mutable std::atomic<const char*> plain_because_{nullptr};
};

}  // namespace

std::unique_ptr<Backend> open_tensorrt(std::string_view engine, const std::string& path, const Passport& passport,
                                       int32_t device, const std::string& library, const std::vector<std::string>& keep,
                                       std::vector<std::string>& outputs) {
  auto backend = std::make_unique<TensorRtBackend>(path, passport, device, library);
  backend->load(engine, passport, keep);
  outputs = backend->output_names();
  return backend;
}

}  // namespace capsedge::embedding
