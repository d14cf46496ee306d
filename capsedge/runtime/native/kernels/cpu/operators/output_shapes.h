// The shapes of an operator's outputs, as the table gives them.
#pragma once

#include <array>
#include <vector>

#include "attributes.h"

namespace capsedge {

// Made once per node, because shapes are wanted in every run.
class OutputShapes {
 public:
  explicit OutputShapes(const Attributes& attributes);

  // Of inputs whose shapes agree with the table. Throws Error if a window is larger than the map that it lies in.
  std::vector<Shape> of(const std::vector<Shape>& inputs) const;

 private:
  Grid grid(const std::vector<Shape>& inputs) const;

  const OperatorSpec& spec_;
  // The dimensions of each output; none: the shape of the first input.
  std::vector<std::vector<DimensionSource>> outputs_;
  std::array<DimensionSource, 2> windows_{};  // of the map's rows and columns
  Shape strides_{1, 1}, dilations_{1, 1}, pads_{0, 0, 0, 0};
  bool shared_ = false;  // one position for all windows
};

}  // namespace capsedge
