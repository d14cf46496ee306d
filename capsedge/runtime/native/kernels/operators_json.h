// The table of operators as JSON, for programs in other languages.
#pragma once

#include <string>

namespace capsedge {

std::string operators_json();

}  // namespace capsedge
