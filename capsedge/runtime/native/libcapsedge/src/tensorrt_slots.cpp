#include "tensorrt_slots.h"

#include <algorithm>

namespace capsedge::libcapsedge {

namespace {

constexpr size_t kGraphs = 8;  // number of sizes per slot whose graphs are kept

}  // namespace

Slot::Slot(const TensorRtEngine& engine) : engine_(engine) {
  try {
    stream_ = engine.cuda.create_stream();
    event_ = engine.cuda.create_event();
    scratch_ = engine.cuda.allocate(engine.scratch_bytes);
    bound_.reserve(kGraphs);
    bound_.emplace_back();
    bound_.back().context = engine.new_context(scratch_);
    buffers_ = engine.new_buffers(engine.infer(*bound_.back().context, engine.largest));
  } catch (...) {
    destroy();
    throw;
  }
}

Slot::~Slot() { destroy(); }

void Slot::destroy() noexcept {
  const Cuda& cuda = engine_.cuda;
  try {
    if (stream_) cuda.synchronize(stream_);
  } catch (...) {  // the failed work has ended; the memory is freed anyway
  }
  for (const Bound& bound : bound_)
    if (bound.graph) cuda.destroy_graph(bound.graph);
  bound_.clear();
  buffers_ = {};
  if (scratch_) cuda.free(scratch_);
  if (event_) cuda.destroy_event(event_);
  if (stream_) cuda.destroy_stream(stream_);
}

void Slot::execute(Bound& bound, Capturing& capturing) {
  const Cuda& cuda = engine_.cuda;
  bound.used = ++runs_;
  if (!bound.ran) {
    engine_.enqueue(*bound.context, stream_);
    bound.ran = true;
    return;
  }
  if (bound.graph == nullptr && capturing.no_graph_reason() == nullptr) {
    cuda.synchronize(stream_);
    std::string why_not;
    bound.graph = cuda.capture(stream_, why_not, [&] { return engine_.accepts(*bound.context, stream_); });
    if (bound.graph == nullptr) capturing.failed(std::move(why_not));
  }
  if (bound.graph != nullptr) cuda.launch(bound.graph, stream_);
  else engine_.enqueue(*bound.context, stream_);
}

Slot::Bound& Slot::bind(const Sizes& sizes) {
  const auto found = std::find_if(bound_.begin(), bound_.end(), [&sizes](const Bound& b) { return b.sizes == sizes; });
  if (found != bound_.end()) return *found;
  auto chosen = std::min_element(bound_.begin(), bound_.end(), [](const Bound& a, const Bound& b) { return a.used < b.used; });
  if (chosen->sizes.batch != 0 && bound_.size() < kGraphs) {
    std::unique_ptr<nvinfer1::IExecutionContext> context = engine_.new_context(scratch_);
    chosen = bound_.emplace(bound_.end());
    chosen->context = std::move(context);
  }
  if (chosen->graph != nullptr) {
    engine_.cuda.synchronize(stream_);  // it may still be running
    engine_.cuda.destroy_graph(chosen->graph);
  }
  chosen->graph = nullptr;
  chosen->ran = false;
  chosen->sizes = {};
  chosen->shapes = engine_.bind(*chosen->context, sizes, buffers_);
  chosen->sizes = sizes;
  return *chosen;
}

Slots::Slots(const TensorRtEngine& engine, size_t most) : engine_(engine), most_(most) {
  free_.reserve(most);
  free_.push_back(std::make_unique<Slot>(engine));  // a lack of memory is detected now, not at the first image
  made_ = 1;
}

Slots::Turn::~Turn() {
  if (slot_ == nullptr) return;
  slot_.reset();
  slots_.lost();
}

std::unique_ptr<Slot> Slots::take() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty() || made_ < most_; });
    if (!free_.empty()) {
      std::unique_ptr<Slot> slot = std::move(free_.back());
      free_.pop_back();
      return slot;
    }
    ++made_;
  }
  try {
    return std::make_unique<Slot>(engine_);
  } catch (...) {
    lost();
    throw;
  }
}

void Slots::give_back(std::unique_ptr<Slot> slot) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(slot));
  }
  changed_.notify_one();
}

void Slots::lost() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --made_;
  }
  changed_.notify_one();
}

void Slots::abandon() noexcept {
  for (std::unique_ptr<Slot>& slot : free_) static_cast<void>(slot.release());
  free_.clear();
}

}  // namespace capsedge::libcapsedge
