// The operators of docs/reference/operators.md as a table: inputs, outputs, attributes and their defaults. The CPU kernels, the
// ONNX Runtime library and the TensorRT plugins read it. The table itself is generated from capsedge/spec/operators.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "generated/operator_sizes.h"

namespace capsedge {

// A list of at most N values, usable at compile time.
template <typename T, size_t N>
class FixedList {
 public:
  constexpr FixedList() = default;
  constexpr FixedList(std::initializer_list<T> values) {
    for (const T& value : values) add(value);
  }
  constexpr void add(const T& value) { values_[size_++] = value; }
  constexpr size_t size() const { return size_; }
  constexpr const T* begin() const { return values_; }
  constexpr const T* end() const { return values_ + size_; }
  constexpr const T& operator[](size_t at) const { return values_[at]; }

 private:
  T values_[N]{};
  size_t size_ = 0;
};

// An input or output. The letter of its type: T float or float16, the same for all T of a node; f float, i int32,
// b int8, B uint8. Outputs have the type of the first input.
struct Parameter {
  const char* name = nullptr;
  char type = 'T';
  bool optional = false;  // whether a node may leave it out; only the last inputs are
  // The names of its dimensions: the same name means the same size, and ... any dimensions.
  FixedList<const char*, kMostDimensions> shape;
  unsigned ones = 0;  // a bit for every dimension that may be 1 instead: the same for all
  // What the TensorRT plugins lack, so that a node runs as its function body there: inputs that change the couplings of
  // single images, and dimensions of 1 that are larger in the other inputs, a bit for each.
  bool per_image = false;
  unsigned body_ones = 0;

  constexpr bool may_be_one(size_t axis) const { return ones >> axis & 1; }
};

enum class AttributeType { kInt, kFloat, kInts, kFloats };

struct AttributeSpec {
  const char* name = nullptr;
  AttributeType type = AttributeType::kInt;
  bool required = false;
  bool flag = false;      // whether it is 0 or 1
  bool positive = false;  // whether it, or each of its numbers, is above zero
  // The default: one integer, several, or a number.
  FixedList<int64_t, kMostIntegers> integers;
  float number = 0;

  constexpr bool is_integer() const { return type == AttributeType::kInt || type == AttributeType::kInts; }
  constexpr bool is_list() const { return type == AttributeType::kInts || type == AttributeType::kFloats; }
};

// The location of a dimension: an input and its axis.
struct Place {
  size_t input, axis;
};

// A dimension that follows from the sizes of a map and a window, by the stride of an axis; 1 where the windows share
// one position (attribute shared).
struct WindowPositions {
  std::string_view name, size, window;
  size_t axis;
};

// What gives the size of an output's dimension: a dimension of an input or, with a window, its positions along an axis.
struct DimensionSource {
  Place size;
  std::optional<Place> window;
  size_t axis = 0;
};

struct OperatorSpec {
  const char* name = nullptr;
  const char* quantizes = nullptr;  // the float operator that this one is with an INT8 weight, or null
  bool plugin = false;              // whether TensorRT's plugin library has it
  bool standard = false;            // whether its body is one standard operator, for which GPUs have kernels
  FixedList<Parameter, kMostInputs> inputs;
  FixedList<Parameter, kMostOutputs> outputs;
  FixedList<AttributeSpec, kMostAttributes> attributes;

  // How many inputs a node has at least; it may have as many as are listed.
  size_t required_inputs() const;
  bool takes(size_t input_count) const { return required_inputs() <= input_count && input_count <= inputs.size(); }
  // "4 or 5": how many inputs a node has, for a person.
  std::string wanted_inputs() const;
  // Throw std::logic_error for a name that is not in the table.
  size_t input(std::string_view name) const;
  const AttributeSpec& attribute(std::string_view name) const;
  bool has_attribute(std::string_view name) const;
  // The first location among the inputs that gives the size of a dimension.
  std::optional<Place> find_dimension(std::string_view dimension) const;
  // Throws std::logic_error for a dimension that no input gives.
  DimensionSource source_of(std::string_view dimension) const;
};

}  // namespace capsedge

#include "generated/operators.h"

namespace capsedge {

constexpr const OperatorSpec& spec_of(OperatorId id) { return kOperators[static_cast<size_t>(id)]; }
constexpr OperatorId id_of(const OperatorSpec& spec) { return static_cast<OperatorId>(&spec - kOperators.data()); }

// Null for a name that no operator has.
const OperatorSpec* find_operator(std::string_view name);

}  // namespace capsedge
