// The walker of libcapsedge for tests/native/test_walkers.py: what it makes of a file, a line a fact.

#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "failure.h"
#include "onnx_file.h"

using namespace capsedge::libcapsedge;

extern "C" __attribute__((visibility("default"))) size_t walk(const char* data, size_t size, char* out, size_t room) {
  std::string text;
  const auto line = [&](const char* what, const std::string& a, const std::string& b) {
    text += std::string(what) + '\x1f' + a + '\x1f' + b + '\x1e';
  };
  try {
    const OnnxFile file = read_onnx({data, size}, "the model");
    for (const std::string& name : file.external) line("external", name, "");
    for (const auto& [domain, type] : file.operators) line("operator", domain, type);
    for (const auto& [domain, name] : file.functions) line("function", domain, name);
    for (const auto& [key, value] : file.metadata) line("metadata", key, value);
    try {
      check_harmless(file, "the model");
    } catch (const Failure& failure) {
      line("harmful", std::to_string(failure.code()), "");
    }
  } catch (const Failure& failure) {
    text = std::string("refused\x1f") + failure.what() + "\x1f\x1e";
  }
  std::memcpy(out, text.data(), text.size() < room ? text.size() : room);
  return text.size();
}

// For a machine that is emulated: the same of each file, with a separator behind it.
int main(int count, char** names) {
  std::string room(1 << 20, ' ');
  for (int k = 1; k < count; ++k) {
    std::ifstream file(names[k], std::ios::binary);
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    std::cout << room.substr(0, walk(data.data(), data.size(), room.data(), room.size())) << '\x1d';
  }
}
