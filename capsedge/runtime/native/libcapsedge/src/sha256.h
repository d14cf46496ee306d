// SHA-256 (FIPS 180-4): whether an engine and its plugin library are the ones that a metadata file describes.
#pragma once

#include <string>
#include <string_view>

namespace capsedge::libcapsedge {

// 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace capsedge::libcapsedge
