#include "capturing.h"

#include <utility>

namespace capsedge::libcapsedge {

void Capturing::failed(std::string why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (no_graph_reason() != nullptr) return;  // another thread was first
  words_ = std::move(why);
  because_.store(words_.c_str(), std::memory_order_release);
}

}  // namespace capsedge::libcapsedge
