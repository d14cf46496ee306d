#pragma once

#include <cstdint>
#include <string>

namespace capsedge::libcapsedge {

// The bytes of a regular file. Throws Failure: CAPSEDGE_USAGE where it cannot be read, CAPSEDGE_ARTEFACT where it has
// more than `most` bytes; `kind` is what it should be: "an ONNX file".
std::string read_file(const std::string& path, int64_t most, const char* kind);

}  // namespace capsedge::libcapsedge
