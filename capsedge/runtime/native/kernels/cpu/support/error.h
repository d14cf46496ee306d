// An error by the caller, described for the person who has to fix it.
#pragma once

#include <stdexcept>

namespace capsedge {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace capsedge
