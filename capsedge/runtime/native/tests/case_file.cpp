#include "case_file.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace {

// Just the JSON of a case's header: objects, lists, numbers, strings without escapes.
struct Json {
  double number = 0;
  std::string text;
  std::vector<Json> list;
  std::map<std::string, Json> fields;
};

class Parser {
 public:
  explicit Parser(const std::string& text) : at_(text.c_str()) {}

  Json value() {
    Json json;
    switch (peek()) {
      case '{':
        items('}', [&] {
          const std::string key = string();
          take(':');
          json.fields[key] = value();
        });
        break;
      case '[':
        items(']', [&] { json.list.push_back(value()); });
        break;
      case '"':
        json.text = string();
        break;
      default: {
        char* end = nullptr;
        json.number = std::strtod(at_, &end);
        if (end == at_) throw std::runtime_error("header of a case: a number was expected");
        at_ = end;
      }
    }
    return json;
  }

 private:
  char peek() {
    while (*at_ == ' ') ++at_;
    return *at_;
  }
  void take(char c) {
    if (peek() != c) throw std::runtime_error(std::string("header of a case: '") + c + "' was expected");
    ++at_;
  }
  template <typename F>
  void items(char close, F&& item) {
    ++at_;
    while (peek() != close) {
      item();
      if (peek() != close) take(',');
    }
    ++at_;
  }
  std::string string() {
    take('"');
    const char* end = std::strchr(at_, '"');
    if (end == nullptr) throw std::runtime_error("header of a case: a text has no end");
    std::string text(at_, end);
    at_ = end + 1;
    return text;
  }

  const char* at_;
};

Array array_of(const Json& entry, const std::string& data) {
  Array array;
  array.name = entry.fields.at("name").text;
  array.dtype = entry.fields.at("dtype").text;
  for (const Json& d : entry.fields.at("shape").list) array.shape.push_back(static_cast<int64_t>(d.number));
  const auto offset = static_cast<size_t>(entry.fields.at("offset").number);
  const auto count = static_cast<size_t>(entry.fields.at("bytes").number);
  if (offset + count > data.size()) throw std::runtime_error("a case ends too early");
  array.bytes.assign(data.begin() + static_cast<std::ptrdiff_t>(offset),
                     data.begin() + static_cast<std::ptrdiff_t>(offset + count));
  return array;
}

}  // namespace

Case read_case(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  uint32_t version = 0, length = 0;
  if (data.size() < 16 || data.compare(0, 8, "CAPSCASE") != 0) throw std::runtime_error(path + " is no case file");
  std::memcpy(&version, data.data() + 8, 4);
  std::memcpy(&length, data.data() + 12, 4);
  if (version != 1) throw std::runtime_error(path + ": version " + std::to_string(version) + " is not known");
  const Json header = Parser(data.substr(16, length)).value();
  Case found;
  found.name = header.fields.at("case").text;
  found.op = header.fields.at("operator").text;
  found.dtype = header.fields.at("dtype").text;
  for (const auto& [name, values] : header.fields.at("attributes").fields)
    for (const Json& v : values.list) found.attributes[name].push_back(v.number);
  for (const Json& entry : header.fields.at("inputs").list) found.inputs.push_back(array_of(entry, data));
  for (const Json& entry : header.fields.at("outputs").list) {
    if (entry.fields.at("node").number == 0) continue;
    found.outputs.push_back(array_of(entry, data));
    found.outputs.back().atol = entry.fields.at("atol").number;
    found.outputs.back().rtol = entry.fields.at("rtol").number;
  }
  return found;
}

std::vector<std::string> list_cases(const std::string& folder, bool heavy) {
  std::ifstream index(folder + "/cases.tsv");
  std::vector<std::string> paths;
  for (std::string line; std::getline(index, line);) {
    std::istringstream fields(line);
    std::string file, dtype, is_heavy;
    std::getline(fields, file, '\t');
    std::getline(fields, dtype, '\t');
    std::getline(fields, is_heavy, '\t');
    if (dtype != "float64" && (heavy || is_heavy == "0")) paths.push_back(folder + "/" + file);
  }
  if (paths.empty()) throw std::runtime_error("no cases in " + folder + ": python -m tests.conformance dump " + folder);
  return paths;
}
