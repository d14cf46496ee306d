#include "backend.h"

namespace capsedge::libcapsedge {

size_t element_bytes(int32_t type) {
  switch (type) {
    case CAPSEDGE_UINT8: case CAPSEDGE_INT8: case CAPSEDGE_BOOL: return 1;
    case CAPSEDGE_UINT16: case CAPSEDGE_INT16: case CAPSEDGE_FLOAT16: return 2;
    case CAPSEDGE_FLOAT32: case CAPSEDGE_INT32: case CAPSEDGE_UINT32: return 4;
    case CAPSEDGE_FLOAT64: case CAPSEDGE_INT64: case CAPSEDGE_UINT64: return 8;
    default: return 0;
  }
}

const char* type_name(int32_t type) {
  switch (type) {
    case CAPSEDGE_FLOAT32: return "float32";
    case CAPSEDGE_UINT8: return "uint8";
    case CAPSEDGE_INT8: return "int8";
    case CAPSEDGE_UINT16: return "uint16";
    case CAPSEDGE_INT16: return "int16";
    case CAPSEDGE_INT32: return "int32";
    case CAPSEDGE_INT64: return "int64";
    case CAPSEDGE_BOOL: return "bool";
    case CAPSEDGE_FLOAT16: return "float16";
    case CAPSEDGE_FLOAT64: return "float64";
    case CAPSEDGE_UINT32: return "uint32";
    case CAPSEDGE_UINT64: return "uint64";
    default: return "unknown";
  }
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
