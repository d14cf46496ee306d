// A strict reader of JSON (RFC 8259) for the metadata of a model: text in, a tree out, nothing written. Our own,
// because the library is built with nothing but a compiler; hence small, and with limits, since files are untrusted.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace capsedge::embedding {

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kLongestJson = 1 << 20;  // bytes
constexpr int kDeepestJson = 64;

struct Json {
  enum Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = kNull;
  bool truth = false;
  int64_t integer = 0;  // of kInteger: written without fraction and exponent, and within 64 bits
  double number = 0;    // of kInteger and kNumber, correctly rounded
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order of the text

  // The last member of this name, as Python reads it; null if there is none.
  const Json* find(std::string_view name) const;

  // Throw JsonError where the value is something else.
  const std::string& string() const;
  int64_t whole() const;
  double real() const;
  const std::vector<Json>& array() const;
};

// Throws JsonError for text that is no JSON, or longer than this.
Json parse_json(std::string_view text, size_t longest = kLongestJson);

// Whether the bytes are UTF-8 (RFC 3629).
bool is_utf8(std::string_view text);

}  // namespace capsedge::embedding
