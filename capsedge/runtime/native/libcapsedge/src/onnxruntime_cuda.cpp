// Models in ONNX Runtime on a GPU: with CUDA graphs, and on memory that is there already. The C++ version of
// capsedge/runtime/backends/onnxruntime_cuda.py.

#include <set>

#include "cuda_runtime.h"
#include "failure.h"
#include "onnxruntime_backend.h"
#include "onnxruntime_graphs.h"

namespace capsedge::libcapsedge {

namespace {

using namespace capsedge::ort;

class Stream {
 public:
  Stream(const Cuda& cuda, int gpu) : cuda_(cuda), gpu_(gpu), handle_(on([&] { return cuda.create_stream(); })) {}
  ~Stream() {
    try {
      on([&] { return cuda_.destroy_stream(handle_), nullptr; });
    } catch (...) {  // the GPU is gone, or this process is a fork
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CudaStream handle() const { return handle_; }

 private:
  template <typename F>
  CudaStream on(F&& act) const {
    const OnDevice on(cuda_, gpu_);
    return act();
  }

  const Cuda& cuda_;
  const int gpu_;
  const CudaStream handle_;
};

class OnnxRuntimeCudaBackend : public OnnxRuntimeBackend {
 public:
  // Inside NoCapture.
  OnnxRuntimeCudaBackend(std::string_view model, const std::string& name, const OpenOnnx& how)
      : OnnxRuntimeBackend(model, name, how),
        cuda_(cuda()),
        gpu_(*how.gpu),
        memory_(owned<OrtMemoryInfo>(api_, ReleaseMemoryInfo(api_), [&](OrtMemoryInfo** made) {
          return CreateMemoryInfo(api_)("Cuda", OrtDeviceAllocator, *how.gpu, OrtMemTypeDefault, made);
        })),
        copies_(std::make_unique<Stream>(cuda_, gpu_)),
        graphs_(runtime_, *how.gpu, inputs(), outputs(), loader(model, how), off(how)) {}

  ~OnnxRuntimeCudaBackend() override {
    const NoCapture none;
    session_.reset();
    copies_.reset();
  }

  const char* no_graph_reason() const override { return graphs_.no_graph_reason(); }

  void require_graphs() {
    graphs_.open();
    if (const char* const why = no_graph_reason())
      throw Failure(CAPSEDGE_UNSUPPORTED, name_ + " cannot run as a CUDA graph.", std::string(why) + ".",
                    "Open it with CAPSEDGE_GRAPHS_AUTO: it then runs without.");
  }

  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override {
    const OnDevice on(cuda_, gpu_);
    if (by_graph(inputs, input_count, outputs, output_count)) return;
    {
      const NoCapture none;
      OnnxRuntimeBackend::run(inputs, input_count, outputs, output_count);
    }
    saw(inputs, input_count, outputs, output_count);
  }

  // ONNX Runtime waits for its results, and so does this call.
  void run_on_stream(const Value* inputs, size_t input_count, Value* outputs, size_t output_count, void* stream) const override {
    const OnDevice on(cuda_, gpu_);
    {
      const NoCapture none;
      check_on_gpu(inputs, input_count, this->inputs());
      check_on_gpu(outputs, output_count, this->outputs());
      check_once(outputs, output_count);
      cuda_.synchronize(stream);  // what the caller has queued there may write the inputs
    }
    if (by_graph(inputs, input_count, outputs, output_count)) return;
    {
      const NoCapture none;
      run_bound(inputs, input_count, outputs, output_count);
    }
    saw(inputs, input_count, outputs, output_count);
  }

 private:
  static std::string off(const OpenOnnx& how) { return how.graphs == CAPSEDGE_GRAPHS_OFF ? kNotRequested : ""; }

  // Opens the session with graphs; keeps the file's bytes if there may be one.
  Graphs::Load loader(std::string_view model, const OpenOnnx& how) const {
    if (how.graphs == CAPSEDGE_GRAPHS_OFF) return nullptr;
    return [this, bytes = std::string(model), how] { return make_session(runtime_, bytes, how, true); };
  }

  // Whether a graph ran the call, on memory of any kind; else the plain session is to run it.
  bool by_graph(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const {
    if (no_graph_reason() != nullptr) return false;
    Graphs::Turn turn(graphs_, {inputs, input_count, outputs, output_count, this->inputs().size()});
    if (!turn) return false;
    try {
      const NoCapture none;
      for (size_t i = 0; i < input_count; ++i) cuda_.copy(turn.input(inputs[i].port), inputs[i].data, inputs[i].bytes, copies_->handle());
      cuda_.synchronize(copies_->handle());  // ONNX Runtime's stream is another one
    } catch (const Failure& failure) {
      turn.failed(failure.what());
      return false;
    }
    if (!turn.launch()) return false;
    const NoCapture none;
    for (size_t i = 0; i < output_count; ++i) {
      const CalledShape::Tensor& made = turn.shape().outputs[i];
      give_shape(outputs[i], this->outputs()[outputs[i].port].name, made.type, made.shape.data(), made.shape.size());
      cuda_.copy(outputs[i].data, turn.output(i), outputs[i].bytes, copies_->handle());
    }
    cuda_.synchronize(copies_->handle());
    return true;
  }

  // After a plain run, which has set the shapes of all outputs.
  void saw(const Value* inputs, size_t input_count, const Value* outputs, size_t output_count) const {
    if (no_graph_reason() == nullptr) graphs_.saw({inputs, input_count, outputs, output_count, this->inputs().size()});
  }

  void check_on_gpu(const Value* values, size_t count, const std::vector<Port>& ports) const {
    for (size_t i = 0; i < count; ++i)
      if (values[i].bytes > 0 && !cuda_.reaches(values[i].data, gpu_))
        fail_usage("'" + ports[values[i].port].name + "' is not on GPU " + std::to_string(gpu_) + ".", "",
                   "Give memory of that GPU, or use capsedge_run.");
  }

  void check_once(const Value* outputs, size_t count) const {
    std::set<size_t> ports;
    for (size_t i = 0; i < count; ++i)
      if (!ports.insert(outputs[i].port).second)
        fail_usage("Output '" + this->outputs()[outputs[i].port].name + "' was requested twice.", "", "Copy the first one.");
  }

  // In the plain session, which reads the inputs where they are, and writes outputs of known shapes where they belong.
  void run_bound(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const {
    const auto binding = owned<OrtIoBinding>(api_, ReleaseIoBinding(api_),
                                             [&](OrtIoBinding** made) { return CreateIoBinding(api_)(session_.get(), made); });
    const auto value_of = [&](const Value& value) {
      return owned<OrtValue>(api_, ReleaseValue(api_), [&](OrtValue** made) { return make(value, memory_.get(), *made), nullptr; });
    };
    for (size_t i = 0; i < input_count; ++i)
      check(api_, BindInput(api_)(binding.get(), this->inputs()[inputs[i].port].name.c_str(), value_of(inputs[i]).get()));
    for (size_t i = 0; i < output_count; ++i) {
      const char* const name = this->outputs()[outputs[i].port].name.c_str();
      if (outputs[i].type != CAPSEDGE_OTHER) check(api_, BindOutput(api_)(binding.get(), name, value_of(outputs[i]).get()));
      else check(api_, BindOutputToDevice(api_)(binding.get(), name, memory_.get()));
    }
    try {
      check(api_, RunWithBinding(api_)(session_.get(), run_options_.get(), binding.get()));
    } catch (const Error& error) {
      fail(error.what());
    }
    copy_new(binding.get(), outputs, output_count);
  }

  // Outputs that were not bound to memory of the caller.
  void copy_new(const OrtIoBinding* binding, Value* outputs, size_t count) const {
    OrtAllocator* allocator = nullptr;
    check(api_, GetAllocatorWithDefaultOptions(api_)(&allocator));
    OrtValue** listed = nullptr;
    size_t found = 0;
    check(api_, GetBoundOutputValues(api_)(binding, allocator, &listed, &found));
    std::vector<Owned<OrtValue>> values;
    for (size_t i = 0; i < found; ++i) values.emplace_back(listed[i], Release<OrtValue>{ReleaseValue(api_)});
    if (listed) check(api_, AllocatorFree(api_)(allocator, listed));
    for (size_t i = 0; i < count; ++i) {
      if (outputs[i].type != CAPSEDGE_OTHER) continue;
      void* data = nullptr;
      shape(values.at(i).get(), outputs[i]);
      check(api_, GetTensorMutableData(api_)(values[i].get(), &data));
      if (outputs[i].bytes > 0) cuda_.copy(outputs[i].data, data, outputs[i].bytes, copies_->handle());
    }
    cuda_.synchronize(copies_->handle());
  }

  const Cuda& cuda_;
  const int gpu_;
  const Owned<OrtMemoryInfo> memory_;
  std::unique_ptr<Stream> copies_;  // calls of several threads share it
  mutable Graphs graphs_;
};

}  // namespace

std::unique_ptr<Backend> open_onnxruntime_cuda(std::string_view model, const std::string& name, const OpenOnnx& how) {
  check_gpu(onnxruntime(how.library), *how.gpu);
  std::unique_ptr<OnnxRuntimeCudaBackend> opened;
  {
    const NoCapture none;
    opened = std::make_unique<OnnxRuntimeCudaBackend>(model, name, how);
  }
  if (how.graphs == CAPSEDGE_GRAPHS_ON) opened->require_graphs();
  return opened;
}

}  // namespace capsedge::libcapsedge
