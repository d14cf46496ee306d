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
      : engine_(path, engine_metadata, how.device, how.library) {
    if (!how.graphs) capturing_.failed(kNotRequested);
  }
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
    slots_ = std::make_unique<Slots>(engine_, how.contexts == 0 ? Slots::kContexts : how.contexts);
  }

  std::vector<std::string> output_names() const { return engine_.output_names(); }
  const char* name() const override { return "tensorrt"; }
  const std::string& version() const override { return engine_.version(); }
  const std::vector<Port>& inputs() const override { return engine_.inputs; }
  const std::vector<Port>& outputs() const override { return engine_.outputs; }
  int64_t smallest_batch() const override { return engine_.smallest.batch; }
  int64_t largest_batch() const override { return engine_.largest.batch; }
  const char* no_graph_reason() const override { return capturing_.no_graph_reason(); }

  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override {
    const Sizes sizes = sizes_of(inputs, input_count);
    const Cuda& cuda = engine_.cuda;
    const OnDevice on(cuda, engine_.device);
    Slots::Turn slot(*slots_);
    Slot::Bound& bound = shaped(slot, sizes, outputs, output_count);
    for (size_t i = 0; i < input_count; ++i) {
      const Buffer& buffer = *slot->buffers().inputs[inputs[i].port];
      if (inputs[i].bytes > 0) std::memcpy(buffer.host(), inputs[i].data, inputs[i].bytes);
      cuda.to_device(buffer.device(), buffer.host(), inputs[i].bytes, slot->stream());
    }
    slot->execute(bound, capturing_);
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
    const Sizes sizes = sizes_of(inputs, input_count);
    const Cuda& cuda = engine_.cuda;
    const OnDevice on(cuda, engine_.device);
    for (size_t i = 0; i < input_count; ++i) check_on_gpu(inputs[i], engine_.inputs[inputs[i].port].name);
    for (size_t i = 0; i < output_count; ++i) check_on_gpu(outputs[i], engine_.outputs[outputs[i].port].name);
    Slots::Turn slot(*slots_);
    Slot::Bound& bound = shaped(slot, sizes, outputs, output_count);
    // The slot's earlier work is on its stream, so the slot may be taken while that is still running.
    slot->wait_for(stream);
    for (size_t i = 0; i < input_count; ++i)
      cuda.copy(slot->buffers().inputs[inputs[i].port]->device(), inputs[i].data, inputs[i].bytes, slot->stream());
    slot->execute(bound, capturing_);
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

  // The sizes of a run, for which the engine must have been built.
  Sizes sizes_of(const Value* values, size_t count) const {
    Sizes sizes;
    for (size_t i = 0; i < count; ++i) {
      const Port& port = engine_.inputs[values[i].port];
      for (size_t axis = 0; axis < port.shape.size(); ++axis)
        if (port.shape[axis] < 0) set_size(axis == 0, values[i].shape[axis], axis == 0 ? sizes.batch : sizes.length);
    }
    if (sizes.batch == 0) sizes.batch = engine_.largest.batch;
    if (sizes.length == 0) sizes.length = engine_.largest.length;
    return sizes;
  }

  // Sets a size of a run, which is the same for all its inputs.
  void set_size(bool batch, int64_t found, int64_t& size) const {
    const std::string what = batch ? "batch" : "length", unit = batch ? " images." : ".";
    if (size != 0 && size != found)
      fail_usage("The inputs have " + what + (batch ? "es" : "s") + " of " + std::to_string(size) + " and " + std::to_string(found) + unit,
                 "Expected: the same for all.");
    const int64_t low = batch ? engine_.smallest.batch : engine_.smallest.length;
    const int64_t high = batch ? engine_.largest.batch : engine_.largest.length;
    if (found < low || found > high)
      fail_usage("A " + what + " of " + std::to_string(found) + unit,
                 engine_.path() + " was built for " + std::to_string(low) + " to " + std::to_string(high) + ".",
                 (batch ? "Split the batch" : "Cut longer inputs and pad shorter ones") +
                     std::string(", or build the engine with another `--") + what + "`.");
    size = found;
  }

  // The slot, set to the sizes of a run, whose outputs get their shapes.
  Slot::Bound& shaped(Slots::Turn& slot, const Sizes& sizes, Value* outputs, size_t count) const {
    Slot::Bound& bound = slot->bind(sizes);
    try {
      for (size_t i = 0; i < count; ++i) shape(outputs[i], bound.shapes.outputs[outputs[i].port]);
    } catch (...) {
      slot.done();  // nothing has run
      throw;
    }
    return bound;
  }

  void shape(Value& output, const nvinfer1::Dims& dims) const {
    const Port& port = engine_.outputs[output.port];
    const size_t bytes = bytes_of(port, dims);
    if (bytes > output.bytes)
      fail_usage("Output '" + port.name + "' has no room.",
                 "It takes " + std::to_string(bytes) + " bytes; given: " + std::to_string(output.bytes) + ".");
    output.type = port.type;
    output.rank = dims.nbDims;
    std::copy_n(dims.d, dims.nbDims, output.shape);
    output.bytes = bytes;
  }

  TensorRtEngine engine_;
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
