#include "output_shapes.h"

#include <optional>
#include <string_view>

namespace capsedge {

OutputShapes::OutputShapes(const Attributes& attributes) : spec_(attributes.spec()) {
  const auto read = [&](const char* name, Shape& to) {
    if (spec_.has_attribute(name)) to = attributes.integers(name);
  };
  read("strides", strides_), read("dilations", dilations_), read("pads", pads_);
  shared_ = spec_.has_attribute("shared") && attributes.flag("shared");
  for (const Parameter& output : spec_.outputs) {
    std::vector<DimensionSource>& dimensions = outputs_.emplace_back();
    for (const std::string_view name : output.shape) {
      if (name == "...") break;
      dimensions.push_back(spec_.source_of(name));
      if (dimensions.back().window) windows_[dimensions.back().axis] = dimensions.back();
    }
  }
}

std::vector<Shape> OutputShapes::of(const std::vector<Shape>& inputs) const {
  std::vector<Shape> shapes;
  shapes.reserve(outputs_.size());
  std::optional<Grid> positions;
  for (const std::vector<DimensionSource>& dimensions : outputs_) {
    if (dimensions.empty()) {
      shapes.push_back(inputs[0]);
      continue;
    }
    Shape& shape = shapes.emplace_back();
    for (const DimensionSource& source : dimensions) {
      if (source.window && !positions) positions = grid(inputs);
      shape.push_back(!source.window      ? inputs[source.size.input][source.size.axis]
                      : source.axis == 0 ? positions->height
                                         : positions->width);
    }
  }
  return shapes;
}

Grid OutputShapes::grid(const std::vector<Shape>& inputs) const {
  if (shared_) return {1, 1};
  int64_t size[2], reach[2];
  for (size_t k = 0; k < 2; ++k) {
    const DimensionSource& source = windows_[k];
    size[k] = inputs[source.size.input][source.size.axis] + pads_[k] + pads_[2 + k];
    reach[k] = dilations_[k] * (inputs[source.window->input][source.window->axis] - 1) + 1;
  }
  return output_grid(spec_.name, {0, size[0], size[1]}, reach[0], reach[1], strides_);
}

}  // namespace capsedge
