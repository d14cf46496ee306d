// A mistake of the caller, in words for the person who has to mend it.
#pragma once

#include <stdexcept>

namespace capsedge {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace capsedge
