// Names of the capsule operators in a file: one name for one function body (capsedge/spec/operators.py). ONNX Runtime
// ignores the overloads of functions before 1.27, so a second body of DynamicRouting is named DynamicRouting_2.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "operators.h"

namespace capsedge::ort {

// ONNX Runtime 1.27 is the first version that distinguishes functions by their overloads.
constexpr int kOverloadsMinor = 27;

// Operator and number of `DynamicRouting_2`; null for a type that is no operator.
std::pair<const OperatorSpec*, size_t> split(const std::string& type);

// The operator named by a node's type: DynamicRouting for DynamicRouting_2.
std::string operator_of(const std::string& type);

// The option's value for nodes of these types: `DynamicRouting:2,Squash:1`.
std::string instances(const std::vector<std::string>& types);

}  // namespace capsedge::ort
