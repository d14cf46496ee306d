// Slots in which an engine runs: a limited number, each with its own stream, buffers and CUDA graphs.
//
// A graph belongs to the context from which it was captured, and TensorRT forbids changing that context afterwards. So
// a slot has one context for each of its most recent sizes (batch and length). They share scratch memory, since only one runs at a
// time. The buffers have room for the largest sizes and never move.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capturing.h"
#include "tensorrt_engine.h"

namespace capsedge::libcapsedge {

class Slot {
 public:
  explicit Slot(const TensorRtEngine& engine);
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // A context that is set to the sizes of a run.
  struct Bound {
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    Sizes sizes;  // a batch of 0: none yet
    Shapes shapes;
    bool ran = false;
    CudaGraph graph = nullptr;
    uint64_t used = 0;
  };
  // The context for these sizes: their own, a new one, or the least recently used one. Valid until the next call.
  Bound& bind(const Sizes& sizes);
  // Puts the inference on the stream. The first run of some sizes is a plain one, as TensorRT requires; the second is
  // captured, and later ones launch its graph. Runs that cannot be captured always use no graph.
  void execute(Bound& bound, Capturing& capturing);

  // All of a slot's work is on its stream, which synchronizes with other streams without the host.
  CudaStream stream() const { return stream_; }
  void wait_for(CudaStream other) const { engine_.cuda.wait(stream_, other, event_); }
  void let_wait(CudaStream other) const { engine_.cuda.wait(other, stream_, event_); }

  const Buffers& buffers() const { return buffers_; }

 private:
  void destroy() noexcept;

  const TensorRtEngine& engine_;
  CudaStream stream_ = nullptr;
  CudaEvent event_ = nullptr;
  void* scratch_ = nullptr;
  Buffers buffers_;
  std::vector<Bound> bound_;
  uint64_t runs_ = 0;
};

// The slots of an engine, created on demand.
class Slots {
 public:
  static constexpr size_t kContexts = 4;  // more would cost memory without keeping a GPU busier

  Slots(const TensorRtEngine& engine, size_t most);

  // A free slot for the duration of a run; waits while all of them are in use. A slot that is not returned by `done` is
  // discarded.
  class Turn {
   public:
    explicit Turn(Slots& slots) : slots_(slots), slot_(slots.take()) {}
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Slot* operator->() const { return slot_.get(); }
    void done() { slots_.give_back(std::move(slot_)); }

   private:
    Slots& slots_;
    std::unique_ptr<Slot> slot_;
  };

  void clear() { free_.clear(); }
  // Forgets them without calling TensorRT or CUDA.
  void abandon() noexcept;

 private:
  std::unique_ptr<Slot> take();
  void give_back(std::unique_ptr<Slot> slot);
  void lost();

  const TensorRtEngine& engine_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Slot>> free_;
  size_t made_ = 0;
};

}  // namespace capsedge::libcapsedge
