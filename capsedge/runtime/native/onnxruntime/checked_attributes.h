// A node's attributes for the CUDA kernels, checked one by one as the CPU kernels check them.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "cuda_node.h"
#include "operators/attributes.h"
#include "support/error.h"

namespace capsedge::ort {

// Throws Error for what is wrong with a node, if anything is.
inline void refuse(const OperatorSpec& spec, const std::string& why) {
  if (!why.empty()) throw Error(std::string(spec.name) + ": " + why);
}

// All throw Error for a wrong value, and for an absent attribute without a default.
class CheckedAttributes final : public CudaAttributes {
 public:
  explicit CheckedAttributes(const Attributes& attributes) : attributes_(attributes) {}

  int32_t integer(const char* name, size_t at) const override {
    const AttributeSpec& wanted = attributes_.spec().attribute(name);
    if (wanted.flag) return attributes_.flag(name);
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    const int64_t value = wanted.is_list() ? attributes_.integers(name, most)[at] : attributes_.integer(name);
    if (value < -most || value > most)
      refuse(attributes_.spec(), std::string("attribute '") + name + "' is " + std::to_string(value) + ": too large");
    return static_cast<int32_t>(value);
  }
  float number(const char* name) const override { return attributes_.number(name); }
  std::vector<float> numbers(const char* name) const override { return attributes_.numbers(name); }

 private:
  const Attributes& attributes_;
};

}  // namespace capsedge::ort
