#include "text.h"

#include <cstdint>
#include <cstdio>

namespace capsedge::libcapsedge {

namespace {

// The character at the start of the text, and its number of bytes; 0 bytes if it is invalid.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

Character first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  size_t bytes;
  uint32_t code, least;
  if (lead >= 0xC2 && lead < 0xE0) bytes = 2, code = lead & 0x1Fu, least = 0x80;
  else if (lead >= 0xE0 && lead < 0xF0) bytes = 3, code = lead & 0x0Fu, least = 0x800;
  else if (lead >= 0xF0 && lead < 0xF5) bytes = 4, code = lead & 0x07u, least = 0x10000;
  else return {};
  if (bytes > text.size()) return {};
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3Fu);
  }
  if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, bytes};
}

// Ranges of control characters, invisible characters, and characters that reorder text. Joiners are allowed.
constexpr uint32_t kHidden[][2] = {
    {0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},     {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},
    {0x070F, 0x070F}, {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},
    {0xE000, 0xF8FF}, {0xFEFF, 0xFEFF}, {0xFFF0, 0xFFFB}, {0xFFFE, 0xFFFF},   {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
    {0xE0000, 0x10FFFF}};

bool is_hidden(uint32_t code) {
  for (const auto& range : kHidden)
    if (code >= range[0] && code <= range[1]) return true;
  return false;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = first_of(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_of(text);
    char escape[12];
    if (c.bytes == 0) {
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      shown += escape;
    } else if (c.code == '\n' || c.code == '\r' || c.code == '\t') {
      shown += c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t";
    } else if (is_hidden(c.code)) {
      std::snprintf(escape, sizeof escape, c.code < 0x100 ? "\\x%02x" : c.code < 0x10000 ? "\\u%04x" : "\\U%08x", c.code);
      shown += escape;
    } else {
      shown += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes ? c.bytes : 1);
  }
  return shown;
}

}  // namespace capsedge::libcapsedge
