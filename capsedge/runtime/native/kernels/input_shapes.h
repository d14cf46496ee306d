// Checks the shapes of an operator's inputs against the table: dimensions of the same name have the same size.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "operators.h"

namespace capsedge {

// Not owned.
struct ShapeView {
  const int64_t* sizes;
  size_t rank;
};

std::string to_text(ShapeView shape);

// Made once per node, because shapes are checked in every run.
class InputShapes {
 public:
  explicit InputShapes(const OperatorSpec& spec);

  // Returns "input 'weight' has shape [1, 2]: wanted [1, J, Pout]" for the first wrong shape; empty if all are right.
  // Only the batch may be zero. Window positions (H', W') are not checked, since they follow from attributes.
  std::string wrong(const ShapeView* inputs, size_t count) const;

  // Whether the TensorRT plugins lack such inputs, whose shapes are right: see Parameter.
  bool plugin_lacks(const ShapeView* inputs, size_t count) const;

 private:
  static constexpr size_t kMostNames = kMostInputs * kMostDimensions;
  static constexpr size_t kBatchNumber = 0;
  static constexpr size_t kFree = kMostNames;  // the number of a dimension that is not checked
  using Sizes = std::array<int64_t, kMostNames>;  // -1: not known yet

  bool fits(size_t input, ShapeView found, Sizes& sizes) const;
  std::string wanted(size_t input, ShapeView found, const Sizes& sizes) const;

  const OperatorSpec& spec_;
  // Each input's dimensions as numbers, the same one for the same name.
  std::array<std::array<size_t, kMostDimensions>, kMostInputs> numbers_{};
};

}  // namespace capsedge
