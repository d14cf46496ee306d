// The weight [I or 1, J, Pout, Pin] of dense capsules, packed only once if it is a constant.
#pragma once

#include <optional>

#include "int8_weight.h"
#include "operator.h"

namespace capsedge {

class DenseWeight {
 public:
  // The weight packed for one run, if it is not a constant; it must outlive the votes.
  struct Packed {
    std::optional<Int8Weight> int8;
    std::optional<Buffer> floats;
  };

  // Keeps a constant weight; weights without four axes are left to the check of shapes.
  void keep(const Tensor& weight, const Level& level);
  // Lets votes read the weight. INT8 stays INT8, because there are few votes compared with weights.
  void use(const Tensor& weight, const Level& level, const Threads& threads, Packed& own, Votes& votes) const;

 private:
  std::optional<Int8Weight> int8_;
  std::optional<Buffer> floats_;
};

// The cost of reading a weight, in floats.
int64_t weight_floats(const Tensor& weight);

// Weights of at least so many floats come from memory whenever they are read.
constexpr int64_t kUncachedWeights = 8 * 1024 * 1024;

// Images that share a reading of the weights: where these are uncached, or the votes of all fit the cache together.
int64_t images_together(int64_t images, int64_t vote_elements, int64_t weight_floats);

}  // namespace capsedge
