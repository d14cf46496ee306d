#include <algorithm>

#include "backend.h"
#include "generated/onnx_wire.h"

namespace capsedge::libcapsedge {

namespace {

// Null for a type that the library does not pass on.
const spec::ElementType* element_type(int32_t type) {
  const auto* const end = std::end(spec::kElementTypes);
  const auto* const found = std::find_if(std::begin(spec::kElementTypes), end, [&](const auto& t) { return t.number == type; });
  return found == end ? nullptr : found;
}

}  // namespace

size_t element_bytes(int32_t type) {
  const spec::ElementType* const found = element_type(type);
  return found ? found->bytes : 0;
}

const char* type_name(int32_t type) {
  const spec::ElementType* const found = element_type(type);
  return found ? found->name : "unknown";
}

void give_shape(Value& output, const std::string& name, int32_t type, const int64_t* shape, size_t rank) {
  size_t bytes = element_bytes(type);
  for (size_t i = 0; i < rank; ++i) bytes *= static_cast<size_t>(shape[i]);
  if (bytes > output.bytes)
    fail_usage("Output '" + name + "' has no room.",
               "It has the shape " + shape_text(shape, rank) + " and takes " + std::to_string(bytes) + " bytes; given: " +
                   std::to_string(output.bytes) + ".");
  output.type = type;
  output.rank = static_cast<int32_t>(rank);
  std::copy_n(shape, rank, output.shape);
  output.bytes = bytes;
}

std::string shape_text(const int64_t* shape, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) text += (i ? ", " : "") + (shape[i] < 0 ? "N" : std::to_string(shape[i]));
  return text + "]";
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace capsedge::libcapsedge
