#include "input_shapes.h"

#include <algorithm>
#include <limits>
#include <string_view>

namespace capsedge {

namespace {

// Whether any dimensions may precede the named ones.
bool is_open(const Parameter& input) { return input.shape.size() > 0 && std::string_view(input.shape[0]) == "..."; }

bool is_window_position(std::string_view name) {
  return std::any_of(std::begin(kWindowPositions), std::end(kWindowPositions),
                     [&](const WindowPositions& p) { return p.name == name; });
}

}  // namespace

std::string to_text(ShapeView shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.rank; ++axis) text += (axis ? ", " : "") + std::to_string(shape.sizes[axis]);
  return text + "]";
}

InputShapes::InputShapes(const OperatorSpec& spec) : spec_(spec) {
  std::vector<std::string_view> names{"N"};
  for (size_t input = 0; input < spec.inputs.size(); ++input)
    for (size_t axis = 0; axis < spec.inputs[input].shape.size(); ++axis) {
      const std::string_view name = spec.inputs[input].shape[axis];
      const auto found = std::find(names.begin(), names.end(), name);
      size_t& number = numbers_[input][axis];
      number = is_window_position(name) ? kFree : static_cast<size_t>(found - names.begin());
      if (number == names.size()) names.push_back(name);
    }
}

std::string InputShapes::wrong(const ShapeView* inputs, size_t count) const {
  Sizes sizes;
  sizes.fill(-1);
  for (size_t input = 0; input < count; ++input) {
    const ShapeView found = inputs[input];
    const Sizes before = sizes;
    const char* name = spec_.inputs[input].name;
    if (!fits(input, found, sizes))
      return std::string("input '") + name + "' has shape " + to_text(found) + ": wanted [" +
             wanted(input, found, before) + "]";
    // Positions inside an image are stored in 32 bits; rows of open shapes are independent.
    const bool batched = found.rank > 0 && numbers_[input][0] == kBatchNumber;
    int64_t elements = 1;
    bool fit = true;
    for (size_t axis = batched ? 1 : 0; axis < found.rank; ++axis)
      fit = fit && !__builtin_mul_overflow(elements, found.sizes[axis], &elements);
    if (!is_open(spec_.inputs[input]) && (!fit || elements > std::numeric_limits<int32_t>::max()))
      return std::string("input '") + name + "' of shape " + to_text(found) + " is too large: at most 2^31 elements";
  }
  return "";
}

bool InputShapes::plugin_lacks(const ShapeView* inputs, size_t count) const {
  Sizes sizes;
  sizes.fill(-1);
  for (size_t input = 0; input < count; ++input) fits(input, inputs[input], sizes);
  for (size_t input = 0; input < count; ++input) {
    const Parameter& parameter = spec_.inputs[input];
    if (parameter.per_image) return true;
    for (size_t axis = 0; axis < parameter.shape.size(); ++axis)
      if (parameter.body_ones >> axis & 1 && inputs[input].sizes[axis] == 1 && sizes[numbers_[input][axis]] != 1)
        return true;
  }
  return false;
}

bool InputShapes::fits(size_t input, ShapeView found, Sizes& sizes) const {
  const Parameter& parameter = spec_.inputs[input];
  const size_t first = is_open(parameter) ? 1 : 0, named = parameter.shape.size() - first;
  if (first ? found.rank < named : found.rank != named) return false;
  for (size_t k = 0; k < named; ++k) {
    const int64_t size = found.sizes[found.rank - named + k];
    const size_t number = numbers_[input][first + k];
    if (size < (number == kBatchNumber ? 0 : 1)) return false;
    if (number == kFree || (size == 1 && parameter.may_be_one(first + k))) continue;
    if (sizes[number] >= 0 && size != sizes[number]) return false;
    sizes[number] = size;
  }
  return true;
}

std::string InputShapes::wanted(size_t input, ShapeView found, const Sizes& sizes) const {
  const Parameter& parameter = spec_.inputs[input];
  std::string text;
  for (size_t axis = 0; axis < parameter.shape.size(); ++axis) {
    const size_t number = numbers_[input][axis];
    const bool known = number != kFree && sizes[number] >= 0 && std::string_view(parameter.shape[axis]) != "...";
    const bool one = parameter.may_be_one(axis) && axis < found.rank && found.sizes[axis] == 1;
    text += (axis ? ", " : "") + (one ? "1" : known ? std::to_string(sizes[number]) : parameter.shape[axis]);
  }
  return text;
}

}  // namespace capsedge
