#include "onnxruntime_graphs.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <set>
#include <thread>

#include "failure.h"

namespace capsedge::libcapsedge {

namespace {

using namespace capsedge::ort;

constexpr size_t kGraphs = 8;       // shapes that are captured; ONNX Runtime cannot drop a single graph
constexpr size_t kRemembered = 64;  // shapes of first calls
constexpr int kAttempts = 3;        // to capture; another library may allocate memory in the middle of one

// Keeps the captures of a process apart from its other calls on GPUs.
class Captures {
 public:
  void enter() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !capturing_; });
    ++running_;
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --running_;
    changed_.notify_all();
  }
  void begin() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !capturing_; });
    capturing_ = true;  // now: or calls that follow one another would keep it waiting
    changed_.wait(lock, [this] { return running_ == 0; });
  }
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    capturing_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;
  bool capturing_ = false;
};

// Never destroyed: other threads may be in a call when the process ends.
Captures& captures() {
  static Captures& captures = *new Captures;
  return captures;
}

struct Capture {
  Capture() { captures().begin(); }
  ~Capture() { captures().end(); }
};

// Of the calling thread; unlike its identifier, never used again.
uint64_t number_of_thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

CalledShape::Tensor tensor_of(const Value& value) {
  return {value.type, {value.shape, value.shape + value.rank}, value.bytes};
}

}  // namespace

NoCapture::NoCapture() { captures().enter(); }
NoCapture::~NoCapture() { captures().leave(); }

CalledShape::CalledShape(const Value* given, size_t input_count, const Value* wanted, size_t output_count, size_t ports)
    : inputs(ports) {
  for (size_t i = 0; i < input_count; ++i) inputs[given[i].port] = tensor_of(given[i]);
  for (size_t i = 0; i < output_count; ++i) {
    output_ports.push_back(wanted[i].port);
    outputs.push_back(tensor_of(wanted[i]));
  }
}

bool CalledShape::same_call(const CalledShape& other) const {
  const auto same = [](const Tensor& a, const Tensor& b) { return a.shape == b.shape; };
  return output_ports == other.output_ports &&
         std::equal(inputs.begin(), inputs.end(), other.inputs.begin(), other.inputs.end(), same);
}

bool CalledShape::capturable() const {
  const auto empty = [](const Tensor& tensor) { return std::count(tensor.shape.begin(), tensor.shape.end(), 0) != 0; };
  return std::none_of(inputs.begin(), inputs.end(), empty) && std::none_of(outputs.begin(), outputs.end(), empty) &&
         std::set<size_t>(output_ports.begin(), output_ports.end()).size() == output_ports.size();
}

// A thread that does things for others, which wait for it: one at a time.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Throws what the function throws.
  void run(const std::function<void()>& act) {
    std::unique_lock<std::mutex> lock(mutex_);
    act_ = &act;
    changed_.notify_all();
    changed_.wait(lock, [this] { return act_ == nullptr; });
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  void loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return act_ != nullptr || ended_; });
      if (act_ == nullptr) return;
      lock.unlock();
      try {
        (*act_)();
      } catch (...) {
        thrown_ = std::current_exception();
      }
      lock.lock();
      act_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* act_ = nullptr;
  std::exception_ptr thrown_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the others
};

// A shape with a graph: the memory of the GPU that the graph reads and writes, and what RunWithBinding takes.
struct Graphs::Bound {
  CalledShape shape;
  std::vector<GpuMemory> inputs, outputs;
  std::vector<Owned<OrtValue>> values;  // over that memory
  Owned<OrtIoBinding> binding;
  Owned<OrtRunOptions> options;  // with the graph's number
  bool captured = false;
};

Graphs::Graphs(const OnnxRuntime& runtime, int gpu, const std::vector<Port>& inputs, const std::vector<Port>& outputs, Load load,
               std::string off)
    : api_(runtime.api), gpu_(gpu), inputs_(inputs), outputs_(outputs), left_(kAttempts) {
  for (const auto* ports : {&inputs, &outputs})
    for (const Port& port : *ports)
      if (off.empty() && port.type == CAPSEDGE_OTHER) off = "'" + port.name + "' has a type that this library does not run";
  if (off.empty()) load_ = std::move(load);
  else capturing_.failed(std::move(off));
}

Graphs::~Graphs() { drop(); }

void Graphs::open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  opened();
}

void Graphs::saw(const CalledShape& call) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || no_graph_reason() != nullptr || !call.capturable()) return;
  if (const auto found = seen(call); found != seen_.end()) seen_.erase(found);
  seen_.push_back(call);
  if (seen_.size() > kRemembered) seen_.erase(seen_.begin());
}

std::vector<CalledShape>::iterator Graphs::seen(const CalledShape& call) {
  return std::find_if(seen_.begin(), seen_.end(), [&](const CalledShape& other) { return call.same_call(other); });
}

Graphs::Bound* Graphs::bound(const CalledShape& call) const {
  const auto same = [&](const std::unique_ptr<Bound>& each) { return call.same_call(each->shape); };
  const auto found = std::find_if(bound_.begin(), bound_.end(), same);
  return found == bound_.end() ? nullptr : found->get();
}

// Whether a shape was called before, and there is room for its graph.
bool Graphs::may_capture(const CalledShape& call) { return bound_.size() < kGraphs && seen(call) != seen_.end(); }

// The memory of a shape, in `fresh` if its graph is still to be captured; null if it gets no graph.
Graphs::Bound* Graphs::find(const CalledShape& call, std::unique_ptr<Bound>& fresh) {
  if (bound(call) == nullptr && !may_capture(call)) return nullptr;
  try {
    settle();
    if (Bound* const known = bound(call)) return known;
    OrtSession* const session = may_capture(call) ? opened() : nullptr;
    if (session == nullptr) return nullptr;
    const NoCapture none;
    fresh = make_bound(session, *seen(call));
    return fresh.get();
  } catch (const std::exception& error) {
    failed(error.what());
    return nullptr;
  }
}

// The session with graphs; null if it is refused.
OrtSession* Graphs::opened() {
  if (session_ == nullptr && load_) {
    try {
      const NoCapture none;
      session_ = load_();
    } catch (const std::exception& error) {
      stop(error.what());
    }
  }
  return session_.get();
}

std::unique_ptr<Graphs::Bound> Graphs::make_bound(OrtSession* session, const CalledShape& shape) const {
  const Cuda& gpu = cuda();
  const auto memory = owned<OrtMemoryInfo>(api_, ReleaseMemoryInfo(api_), [&](OrtMemoryInfo** made) {
    return CreateMemoryInfo(api_)("Cuda", OrtDeviceAllocator, gpu_, OrtMemTypeDefault, made);
  });
  auto made = std::make_unique<Bound>(Bound{shape, {}, {}, {}, {}, run_options(api_), false});
  made->binding = owned<OrtIoBinding>(api_, ReleaseIoBinding(api_),
                                      [&](OrtIoBinding** binding) { return CreateIoBinding(api_)(session, binding); });
  const auto add = [&](const CalledShape::Tensor& tensor, std::vector<GpuMemory>& to) -> OrtValue* {
    to.emplace_back(gpu, tensor.bytes);
    made->values.push_back(owned<OrtValue>(api_, ReleaseValue(api_), [&](OrtValue** value) {
      return CreateTensorWithDataAsOrtValue(api_)(memory.get(), to.back().address(), tensor.bytes, tensor.shape.data(),
                                                  tensor.shape.size(), static_cast<ONNXTensorElementDataType>(tensor.type), value);
    }));
    return made->values.back().get();
  };
  for (size_t i = 0; i < inputs_.size(); ++i)
    check(api_, BindInput(api_)(made->binding.get(), inputs_[i].name.c_str(), add(shape.inputs[i], made->inputs)));
  for (size_t i = 0; i < shape.output_ports.size(); ++i)
    check(api_, BindOutput(api_)(made->binding.get(), outputs_[shape.output_ports[i]].name.c_str(), add(shape.outputs[i], made->outputs)));
  check(api_, AddRunConfigEntry(api_)(made->options.get(), "gpu_graph_id", std::to_string(bound_.size() + 1).c_str()));
  return made;
}

// When a second thread calls, gives graphs a thread of their own, for which they are captured anew.
void Graphs::settle() {
  if (worker_) return;
  const uint64_t here = number_of_thread();
  if (owner_ == 0) owner_ = here;
  if (owner_ == here) return;
  worker_ = std::make_unique<Worker>();
  drop();
}

void Graphs::run(const Bound& bound) {
  const auto act = [&] { check(api_, RunWithBinding(api_)(session_.get(), bound.options.get(), bound.binding.get())); };
  if (worker_) worker_->run(act);
  else act();
}

// Forgets session and graphs; shapes that were called are still known.
void Graphs::drop() {
  const NoCapture none;
  bound_.clear();
  session_.reset();
}

// Begins anew, because a session whose capture failed is in an unknown state; or stops: at once without memory, else after
// some attempts.
void Graphs::failed(const std::string& why) {
  --left_;
  if (is_short_of_memory(why)) stop("the GPU has too little memory for them: " + first_line(why));
  else if (left_ == 0) stop(why);
  else drop();
}

void Graphs::stop(const std::string& why) {
  capturing_.failed(first_line(why));
  load_ = nullptr;
  seen_.clear();
  drop();
  worker_.reset();
}

Graphs::Turn::Turn(Graphs& graphs, const CalledShape& call) : graphs_(graphs) {
  if (graphs.no_graph_reason() != nullptr) return;
  lock_ = std::unique_lock<std::mutex>(graphs.mutex_, std::try_to_lock);
  if (lock_) bound_ = graphs.find(call, fresh_);
}

Graphs::Turn::~Turn() {
  if (fresh_ == nullptr) return;
  const NoCapture none;
  fresh_.reset();
}

const CalledShape& Graphs::Turn::shape() const { return bound_->shape; }
void* Graphs::Turn::input(size_t port) const { return bound_->inputs[port].address(); }
void* Graphs::Turn::output(size_t at) const { return bound_->outputs[at].address(); }

bool Graphs::Turn::launch() {
  try {
    if (bound_->captured) {
      const NoCapture none;
      graphs_.run(*bound_);
    } else {
      const Capture alone;
      graphs_.run(*bound_);
    }
  } catch (const Error& error) {
    failed(error.what());
    return false;
  }
  bound_->captured = true;
  if (fresh_) graphs_.bound_.push_back(std::move(fresh_));
  return true;
}

void Graphs::Turn::failed(const std::string& why) {
  bound_ = nullptr;
  {
    const NoCapture none;
    fresh_.reset();  // before its session
  }
  graphs_.failed(why);
}

}  // namespace capsedge::libcapsedge
