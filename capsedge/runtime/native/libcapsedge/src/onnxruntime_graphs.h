// CUDA graphs of ONNX Runtime sessions: which shapes are captured, when, and in which thread. The C++ version of
// capsedge/runtime/backends/onnxruntime_graphs.py, whose head says why it is so.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "capturing.h"
#include "cuda_runtime.h"
#include "onnxruntime_session.h"

namespace capsedge::libcapsedge {

// Work on GPUs during which ONNX Runtime captures nothing in this process, because a capture forbids others to allocate
// memory; several threads may be inside. Must not be nested.
struct NoCapture {
  NoCapture();
  ~NoCapture();
  NoCapture(const NoCapture&) = delete;
  NoCapture& operator=(const NoCapture&) = delete;
};

// Memory of a GPU. Make and free it inside NoCapture.
class GpuMemory {
 public:
  GpuMemory(const Cuda& cuda, size_t bytes) : cuda_(&cuda), address_(cuda.allocate(bytes)) {}
  ~GpuMemory() {
    if (address_) cuda_->free(address_);
  }
  GpuMemory(GpuMemory&& other) noexcept : cuda_(other.cuda_), address_(std::exchange(other.address_, nullptr)) {}
  GpuMemory& operator=(GpuMemory&&) = delete;
  void* address() const { return address_; }

 private:
  const Cuda* cuda_;
  void* address_;
};

// A shape that was called: what a graph depends on, and what it gives.
struct CalledShape {
  CalledShape(const Value* inputs, size_t input_count, const Value* outputs, size_t output_count, size_t ports);

  struct Tensor {
    int32_t type = CAPSEDGE_OTHER;
    std::vector<int64_t> shape;
    size_t bytes = 0;
  };
  std::vector<Tensor> inputs;        // of each port
  std::vector<size_t> output_ports;  // in the order of the call
  std::vector<Tensor> outputs;       // of those; known after a run

  bool same_call(const CalledShape& other) const;
  bool capturable() const;  // no tensor is empty, and no output is asked for twice
};

class Worker;

class Graphs {
 public:
  using Load = std::function<Owned<OrtSession>()>;
  // `load` opens the session with graphs; `off`: why there are none, or empty. The ports outlive this.
  Graphs(const OnnxRuntime& runtime, int gpu, const std::vector<Port>& inputs, const std::vector<Port>& outputs, Load load,
         std::string off);
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Why calls use no graphs; null while they may. The text stays.
  const char* no_graph_reason() const { return capturing_.no_graph_reason(); }
  // Opens the session now; if it is refused, no_graph_reason says why.
  void open();
  // Remembers a plain call, by the shapes that it took and gave: the next one is captured.
  void saw(const CalledShape& call);

  struct Bound;
  // The memory of a shape that has a graph or gets one by `launch`, for the caller alone. Empty if the call is to run in the
  // plain session: it is the first of its shape, there is no room for another graph, there are none, or another thread is here.
  class Turn {
   public:
    Turn(Graphs& graphs, const CalledShape& call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    explicit operator bool() const { return bound_ != nullptr; }
    const CalledShape& shape() const;
    void* input(size_t port) const;
    void* output(size_t at) const;  // at a place of shape().output_ports
    // Replays the graph, or captures it. False: the call is to run in the plain session.
    bool launch();
    // After a failure of the GPU: begins anew, or stops.
    void failed(const std::string& why);

   private:
    Graphs& graphs_;
    std::unique_lock<std::mutex> lock_;
    std::unique_ptr<Bound> fresh_;  // without a graph so far
    Bound* bound_ = nullptr;
  };

 private:
  std::vector<CalledShape>::iterator seen(const CalledShape& call);
  Bound* bound(const CalledShape& call) const;
  bool may_capture(const CalledShape& call);
  Bound* find(const CalledShape& call, std::unique_ptr<Bound>& fresh);
  OrtSession* opened();
  std::unique_ptr<Bound> make_bound(OrtSession* session, const CalledShape& shape) const;
  void settle();
  void run(const Bound& bound);
  void failed(const std::string& why);
  void drop();
  void stop(const std::string& why);

  const OrtApi* const api_;
  const int gpu_;
  const std::vector<Port>&inputs_, &outputs_;
  Capturing capturing_;
  std::mutex mutex_;  // held while the session with graphs is in use; guards all below
  Load load_;         // it keeps the file's bytes
  Owned<OrtSession> session_;
  uint64_t owner_ = 0;              // number of the thread that the session belongs to; 0: none
  std::unique_ptr<Worker> worker_;  // or a thread of its own
  std::vector<std::unique_ptr<Bound>> bound_;
  std::vector<CalledShape> seen_;  // latest last
  int left_;                       // attempts to capture
};

}  // namespace capsedge::libcapsedge
