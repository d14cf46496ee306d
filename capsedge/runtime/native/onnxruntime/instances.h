// Names of the capsule operators in a file: one name for one function body (capsedge/spec/operators.py). ONNX Runtime
// ignores the overloads of functions before 1.27, so a second body of DynamicRouting is named DynamicRouting_2.
#pragma once

#include <string>
#include <vector>

namespace capsedge::ort {

// ONNX Runtime 1.27 is the first version that distinguishes functions by their overloads.
constexpr int kOverloadsMinor = 27;

// The operator named by a node's type: DynamicRouting for DynamicRouting_2.
std::string operator_of(const std::string& type);

// The option's value for nodes of these types: `DynamicRouting:2,Squash:1`.
std::string instances(const std::vector<std::string>& types);

}  // namespace capsedge::ort
