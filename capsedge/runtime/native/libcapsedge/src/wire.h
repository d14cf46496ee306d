// Reads messages of an ONNX file that read_onnx has accepted, so it checks only what keeps it inside the bytes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace capsedge::libcapsedge::wire {

enum { kVarint = 0, kBytes = 2, kFixed32 = 5 };

// A number at `at`, which moves past it.
inline uint64_t varint(std::string_view bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  throw std::logic_error("a number in a checked file does not end");
}

struct Field {
  uint64_t number;
  int type;                // kVarint, kBytes, kFixed32 or another
  uint64_t value;          // of kVarint
  std::string_view whole;  // with its key and length
  std::string_view content;
  bool message() const { return type == kBytes; }  // or text or bytes
};

template <typename F>
void each(std::string_view bytes, F&& take) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t start = at;
    const uint64_t tag = varint(bytes, at);
    const auto type = static_cast<int>(tag & 7);
    const uint64_t length = type == kBytes ? varint(bytes, at) : type == kFixed32 ? 4 : type == 1 ? 8 : 0;
    const size_t content = at;
    const uint64_t value = type == kVarint ? varint(bytes, at) : 0;
    if (length > bytes.size() - at) throw std::logic_error("a field of a checked file is too long");
    at += static_cast<size_t>(length);
    take(Field{tag >> 3, type, value, bytes.substr(start, at - start), bytes.substr(content, at - content)});
  }
}

template <typename F>
void each_message(std::string_view bytes, F&& take) {
  each(bytes, [&](const Field& field) {
    if (field.message()) take(field);
  });
}

// A text among the fields of a message; empty if it has none of that number.
inline std::string text_of(std::string_view bytes, uint64_t number) {
  std::string text;
  each_message(bytes, [&](const Field& field) {
    if (field.number == number) text = field.content;
  });
  return text;
}

}  // namespace capsedge::libcapsedge::wire
