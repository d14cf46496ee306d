// Runs TensorRT engines on host or GPU memory; the C++ version of capsedge/runtime/backends/tensorrt_backend.py.

#include <algorithm>
#include <cstring>

#include "backend.h"
#include "failure.h"
#include "tensorrt_engine.h"
#include "tensorrt_slots.h"

namespace capsedge::libcapsedge {

namespace {

class TensorRtBackend : public Backend {
 public:
  TensorRtBackend(const std::string& path, const EngineMetadata& engine_metadata, const OpenEngine& how)
      : engine_(path, engine_metadata, how.device, how.library), smallest_(engine_metadata.smallest_batch),
        largest_(engine_metadata.largest_batch) {}
  ~TensorRtBackend() override {
    try {
      const OnDevice on(engine_.cuda, engine_.device);
      if (slots_) slots_->clear();
      engine_.unload();
    } catch (...) {
      // The GPU is gone, this process is a fork, or the process is ending and CUDA ended first. TensorRT must not be called.
      if (slots_) slots_->abandon();
      engine_.abandon();
    }
  }

  // Separate from the constructor, so that a partly initialized object is destroyed as above.
  void load(std::string_view engine, const EngineMetadata& engine_metadata, const OpenEngine& how) {
    const std::string plugin = engine_.check(engine_metadata);
    const OnDevice on(engine_.cuda, engine_.device);
    engine_.load(engine, plugin, how.keep);
    slots_ = std::make_unique<Slots>(engine_, largest_, how.contexts == 0 ? Slots::kContexts : how.contexts);
  }

  std::vector<std::string> output_names() const { return engine_.output_names(); }
  const char* name() const override { return "tensorrt"; }
  const std::string& version() const override { return engine_.version(); }
  const std::vector<Port>& inputs() const override { return engine_.inputs; }
  const std::vector<Port>& outputs() const override { return engine_.outputs; }
  int64_t smallest_batch() const override { return smallest_; }
  int64_t largest_batch() const override { return largest_; }
  const char* no_graph_reason() const override { return capturing_.no_graph_reason(); }

  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override {
    const int64_t batch = batch_of(inputs, input_count);
    for (size_t i = 0; i < output_count; ++i) shape(outputs[i], batch);
    const Cuda& cuda = engine_.cuda;
    const OnDevice on(cuda, engine_.device);
    Slots::Turn slot(*slots_);
    for (size_t i = 0; i < input_count; ++i) {
      const Buffer& buffer = *slot->buffers().inputs[inputs[i].port];
      if (inputs[i].bytes > 0) std::memcpy(buffer.host(), inputs[i].data, inputs[i].bytes);
      cuda.to_device(buffer.device(), buffer.host(), inputs[i].bytes, slot->stream());
    }
    slot->execute(batch, capturing_);
    for (size_t i = 0; i < output_count; ++i) {
      const Buffer& buffer = *slot->buffers().outputs[outputs[i].port];
      cuda.to_host(buffer.host(), buffer.device(), outputs[i].bytes, slot->stream());
    }
    cuda.synchronize(slot->stream());
    for (size_t i = 0; i < output_count; ++i)
      if (outputs[i].bytes > 0)
        std::memcpy(outputs[i].data, slot->buffers().outputs[outputs[i].port]->host(), outputs[i].bytes);
    slot.done();
  }

  void run_on_stream(const Value* inputs, size_t input_count, Value* outputs, size_t output_count,
                     void* stream) const override {
    const int64_t batch = batch_of(inputs, input_count);
    const Cuda& cuda = engine_.cuda;
    const OnDevice on(cuda, engine_.device);
    for (size_t i = 0; i < input_count; ++i) check_on_gpu(inputs[i], engine_.inputs[inputs[i].port].name);
    for (size_t i = 0; i < output_count; ++i) {
      shape(outputs[i], batch);
      check_on_gpu(outputs[i], engine_.outputs[outputs[i].port].name);
    }
    Slots::Turn slot(*slots_);
    // The slot's earlier work is on its stream, so the slot may be taken while that is still running.
    slot->wait_for(stream);
    for (size_t i = 0; i < input_count; ++i)
      cuda.copy(slot->buffers().inputs[inputs[i].port]->device(), inputs[i].data, inputs[i].bytes, slot->stream());
    slot->execute(batch, capturing_);
    for (size_t i = 0; i < output_count; ++i)
      cuda.copy(outputs[i].data, slot->buffers().outputs[outputs[i].port]->device(), outputs[i].bytes, slot->stream());
    slot->let_wait(stream);
    slot.done();
  }

 private:
  void check_on_gpu(const Value& value, const std::string& name) const {
    if (value.bytes > 0 && !engine_.cuda.reaches(value.data, engine_.device))
      fail_usage("'" + name + "' is not on GPU " + std::to_string(engine_.device) + ".", "",
                 "Give memory of that GPU, or use capsedge_run.");
  }

  // The batch size of a call, for which the engine must have been built.
  int64_t batch_of(const Value* values, size_t count) const {
    int64_t batch = -1;
    for (size_t i = 0; i < count; ++i) {
      const Port& port = engine_.inputs[values[i].port];
      if (port.shape.empty() || port.shape[0] >= 0) continue;
      if (batch >= 0 && batch != values[i].shape[0])
        fail_usage("The inputs have batches of " + std::to_string(batch) + " and " + std::to_string(values[i].shape[0]) + " images.",
                   "Expected: the same for all.");
      batch = values[i].shape[0];
    }
    if (batch < 0) return largest_;
    if (batch < smallest_ || batch > largest_)
      fail_usage("A batch of " + std::to_string(batch) + " images.",
                 engine_.path() + " was built for " + std::to_string(smallest_) + " to " + std::to_string(largest_) + ".",
                 "Split the batch, or build the engine with another `--batch`.");
    return batch;
  }

  void shape(Value& output, int64_t batch) const {
    const Port& port = engine_.outputs[output.port];
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

  TensorRtEngine engine_;
  const int64_t smallest_, largest_;
  mutable Capturing capturing_;
  std::unique_ptr<Slots> slots_;  // destroyed before the engine
};

}  // namespace

std::unique_ptr<Backend> open_tensorrt(std::string_view engine, const std::string& path, const EngineMetadata& engine_metadata,
                                       const OpenEngine& how, std::vector<std::string>& outputs) {
  auto backend = std::make_unique<TensorRtBackend>(path, engine_metadata, how);
  backend->load(engine, engine_metadata, how);
  outputs = backend->output_names();
  return backend;
}

}  // namespace capsedge::libcapsedge
