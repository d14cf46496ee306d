// A part of an ONNX file as a separate file: what capsedge/runtime/session/decoder.py does in Python.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace capsedge::libcapsedge {

// The output cannot be computed from the value alone; the message gives the reason.
struct SubgraphError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The part of a file that computes the output `end` from `start`, which is its only input; where that reads the value
// behind `start`, of the same elements in another shape or type, this is the input. `bytes` have passed read_onnx. Throws
// SubgraphError where `end` depends on more, or the file does not describe the input.
std::string extract_subgraph(std::string_view bytes, const std::string& start, const std::string& end);

}  // namespace capsedge::libcapsedge
