#include "operators.h"

#include <stdexcept>
#include <string>

namespace capsedge {

const OperatorSpec* find_operator(std::string_view name) {
  for (const OperatorSpec& spec : kOperators)
    if (name == spec.name) return &spec;
  return nullptr;
}

size_t OperatorSpec::required_inputs() const {
  size_t count = 0;
  for (const Parameter& input : inputs) count += !input.optional;
  return count;
}

std::string OperatorSpec::wanted_inputs() const {
  const size_t least = required_inputs();
  const std::string text = std::to_string(least);
  if (least == inputs.size()) return text;
  return text + (least + 1 == inputs.size() ? " or " : " to ") + std::to_string(inputs.size());
}

size_t OperatorSpec::input(std::string_view wanted) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (wanted == inputs[i].name) return i;
  throw std::logic_error(std::string(name) + " has no input '" + std::string(wanted) + "'");
}

std::optional<Place> OperatorSpec::find_dimension(std::string_view dimension) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t axis = 0; axis < inputs[i].shape.size(); ++axis)
      if (dimension == inputs[i].shape[axis] && !inputs[i].may_be_one(axis)) return Place{i, axis};
  return std::nullopt;
}

DimensionSource OperatorSpec::source_of(std::string_view dimension) const {
  if (const auto place = find_dimension(dimension)) return {*place, std::nullopt};
  for (const WindowPositions& p : kWindowPositions) {
    const auto size = find_dimension(p.size), window = find_dimension(p.window);
    if (p.name == dimension && size && window) return {*size, window, p.axis};
  }
  throw std::logic_error(std::string(name) + " has no dimension '" + std::string(dimension) + "'");
}

bool OperatorSpec::has_attribute(std::string_view wanted) const {
  for (const AttributeSpec& known : attributes)
    if (wanted == known.name) return true;
  return false;
}

const AttributeSpec& OperatorSpec::attribute(std::string_view wanted) const {
  for (const AttributeSpec& known : attributes)
    if (wanted == known.name) return known;
  throw std::logic_error(std::string(name) + " has no attribute '" + std::string(wanted) + "'");
}

}  // namespace capsedge
