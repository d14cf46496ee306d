// A first check of an ONNX file, before ONNX Runtime gets its bytes: what capsedge/runtime/onnx_file/summary.py does in
// Python,
// with the same limits and the same words.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generated/onnx_wire.h"

namespace capsedge::libcapsedge {

using spec::kDomain, spec::kDomains;


using NodeType = std::pair<std::string, std::string>;  // type and overload, unless said otherwise

struct Span {
  size_t start, end;
};

struct OnnxFile {
  std::string producer, producer_version;
  std::map<std::string, std::string> metadata;
  std::vector<NodeType> capsedge_nodes;  // functions included
  std::set<NodeType> capsedge_functions;
  std::set<std::string> unnamed_inputs;  // types of capsedge nodes with an unnamed input
  std::set<std::pair<std::string, std::string>> overloaded;  // domain and name of functions that differ only in their overloads
  std::vector<std::string> external;  // tensors whose data is in another file
  std::set<NodeType> operators;       // domain and type of every node, functions included; "ai.onnx" is ""
  std::set<NodeType> functions;       // domain and name
  bool expanded_routing = false;      // whether routing is written in standard operators, as for couplings
  Span graph_field{};  // of the graph: with its key and length
  Span graph{};        // its bytes
  std::vector<std::pair<std::string, Span>> outputs;  // name, and the field with its key and length

  // Types of capsedge nodes without a function body.
  std::set<std::string> missing_functions() const;

  // Types of the capsedge nodes.
  std::vector<std::string> capsedge_types() const;
};

// Throws Failure (CAPSEDGE_ARTEFACT) for bytes that are not a complete ONNX model; `name` is their name in errors.
OnnxFile read_onnx(std::string_view bytes, const std::string& name);

// Refuses a file that would make a runtime open other files, run unknown operators or crash. Throws Failure
// (CAPSEDGE_ARTEFACT, CAPSEDGE_UNSUPPORTED).
void check_harmless(const OnnxFile& file, const std::string& name);

// The model with only the named outputs. Throws Failure (CAPSEDGE_USAGE) where it lacks one of them.
std::string keep_outputs(std::string_view bytes, const OnnxFile& file, const std::vector<std::string>& names,
                         const std::string& name);

}  // namespace capsedge::libcapsedge
