// Slots in which an engine runs: a limited number, each with its own stream, buffers and CUDA graphs.
//
// A graph belongs to the context that it was captured from, as that was then: TensorRT forbids to change the context
// afterwards. So a slot has a context for each of the batches that it ran last, all of them in the same scratch memory,
// since only one runs at a time. The buffers have room for the largest batch and never move.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorrt_engine.h"

namespace capsedge::libcapsedge {

// Whether runs become graphs.
class Capturing {
 public:
  // Why they do not; null while they do.
  const char* no_graph_reason() const { return because_.load(std::memory_order_acquire); }
  void failed(std::string why);  // for good

 private:
  std::mutex mutex_;
  std::string words_;
  std::atomic<const char*> because_{nullptr};
};

class Slot {
 public:
  Slot(const TensorRtEngine& engine, int64_t largest);
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // Puts the inference on the stream. The first run of a batch is a plain one, as TensorRT wants; the second is
  // captured, the others launch its graph. What cannot be captured always runs without a graph.
  void execute(int64_t batch, Capturing& capturing);

  // All of a slot's work is on its stream. Others wait for it, and it for others, without the host.
  CudaStream stream() const { return stream_; }
  void wait_for(CudaStream other) const { engine_.cuda.wait(stream_, other, event_); }
  void let_wait(CudaStream other) const { engine_.cuda.wait(other, stream_, event_); }

  const Buffers& buffers() const { return buffers_; }

 private:
  struct Bound {
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    int64_t batch = 0;
    bool ran = false;
    CudaGraph graph = nullptr;
    uint64_t used = 0;
  };
  Bound& bound_for(int64_t batch);
  void destroy() noexcept;

  const TensorRtEngine& engine_;
  CudaStream stream_ = nullptr;
  CudaEvent event_ = nullptr;
  void* scratch_ = nullptr;
  Buffers buffers_;
  std::vector<Bound> bound_;
  uint64_t runs_ = 0;
};

// The slots of an engine, made when they are needed.
class Slots {
 public:
  static constexpr size_t kContexts = 4;  // more keep no GPU busier and cost memory

  Slots(const TensorRtEngine& engine, int64_t largest, size_t most);

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
  const int64_t largest_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Slot>> free_;
  size_t made_ = 0;
};

}  // namespace capsedge::libcapsedge
