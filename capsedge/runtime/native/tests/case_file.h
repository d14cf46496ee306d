// A case of the conformance registry, as `python -m tests.conformance dump` writes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct Array {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<char> bytes;  // exactly as long as the array, so that a sanitizer sees what reads past it
  double atol = 0, rtol = 0;
};

struct Case {
  std::string name;
  std::string op;
  std::string dtype;
  std::map<std::string, std::vector<double>> attributes;
  std::vector<Array> inputs;
  std::vector<Array> outputs;  // of the ONNX node, in float64
};

// Throws std::runtime_error.
Case read_case(const std::string& path);

// The light cases of a folder, or all of them: paths of those in float and float16.
std::vector<std::string> list_cases(const std::string& folder, bool heavy);
