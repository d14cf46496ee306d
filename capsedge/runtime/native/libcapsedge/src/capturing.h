// Whether runs on a GPU are captured as CUDA graphs.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace capsedge::libcapsedge {

constexpr char kNotRequested[] = "graphs were not requested";

class Capturing {
 public:
  // Why they are not; null while they are.
  const char* no_graph_reason() const { return because_.load(std::memory_order_acquire); }
  void failed(std::string why);  // permanently

 private:
  std::mutex mutex_;
  std::string words_;
  std::atomic<const char*> because_{nullptr};
};

}  // namespace capsedge::libcapsedge
