// The operators of docs/reference/operators.md as a table: inputs, outputs, attributes and their defaults. The CPU kernels, the
// ONNX Runtime library and the TensorRT plugins read it; tests compare it with Python's table and the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

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
};

enum class AttributeType { kInt, kFloat, kInts, kFloats };

struct AttributeSpec {
  const char* name = nullptr;
  AttributeType type = AttributeType::kInt;
  bool required = false;
  // The default: one integer, several, or a number.
  FixedList<int64_t, 4> integers;
  float number = 0;

  constexpr bool is_integer() const { return type == AttributeType::kInt || type == AttributeType::kInts; }
  constexpr bool is_list() const { return type == AttributeType::kInts || type == AttributeType::kFloats; }
};

struct OperatorSpec {
  const char* name = nullptr;
  FixedList<Parameter, 9> inputs;
  FixedList<Parameter, 2> outputs;
  FixedList<AttributeSpec, 8> attributes;
  const char* quantizes = nullptr;  // the float operator that this one is with an INT8 weight, or null

  // How many inputs a node has at least; it may have as many as are listed.
  size_t required_inputs() const;
  bool takes(size_t input_count) const { return required_inputs() <= input_count && input_count <= inputs.size(); }
  // "4 or 5": how many inputs a node has, for a person.
  std::string wanted_inputs() const;
  // Throw std::logic_error for a name that is not in the table.
  size_t input(std::string_view name) const;
  const AttributeSpec& attribute(std::string_view name) const;
};

constexpr size_t kOperatorCount = 14;
extern const std::array<OperatorSpec, kOperatorCount> kOperators;

// Null for a name that no operator has.
const OperatorSpec* find_operator(std::string_view name);

}  // namespace capsedge
