// Text from files, made safe to print: capsedge/runtime/files/text.py.
#pragma once

#include <string>
#include <string_view>

namespace capsedge::libcapsedge {

// Whether the bytes are UTF-8 (RFC 3629).
bool is_utf8(std::string_view text);

// The text in one line of UTF-8 that does nothing to a terminal: control codes, line breaks, letters that are invisible
// or reorder others, and bytes that are not text become escapes (\x1b, \u202e, \xff).
std::string printable(std::string_view text);

}  // namespace capsedge::libcapsedge
