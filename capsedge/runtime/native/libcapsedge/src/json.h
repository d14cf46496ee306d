// A strict reader of JSON (RFC 8259) for the metadata of a model: text in, a tree out, nothing written. It is our own,
// because the library is built with nothing but a compiler; it is small, and has limits because files are untrusted.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generated/limits.h"

namespace capsedge::libcapsedge {

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Json {
  enum Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = kNull;
  bool truth = false;
  int64_t integer = 0;  // of kInteger: written without fraction or exponent, and within 64 bits
  double number = 0;    // of kInteger and kNumber, correctly rounded
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order of the text

  // The member with this name; null if there is none.
  const Json* find(std::string_view name) const;
  // Throws JsonError if an object lacks this member or it has another kind.
  const Json& member(const char* name, Kind wanted) const;
  // Throws JsonError if an object has other members than these.
  template <size_t N>
  void only(const std::string_view (&names)[N]) const {
    only(names, N);
  }
  void only(const std::string_view* names, size_t count) const;

  // Throw JsonError if the value has another kind.
  void check(Kind wanted) const;
  const std::string& string() const;
  int64_t whole() const;
  double real() const;
  const std::vector<Json>& array() const;
};

// Throws JsonError for text that is not JSON, exceeds the limits, or repeats a key within an object.
Json parse_json(std::string_view text);

}  // namespace capsedge::libcapsedge
