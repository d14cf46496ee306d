// The CUDA runtime that this process uses.
#pragma once

#include <string>

#include "cudart_abi.h"

namespace capsedge {
namespace cuda {

// Null if no libcudart was found; the first call looks for one. `again`: and so does this one, if none was found before.
const cudart::Functions* find_cudart(bool again = false);

// Why none was found, as a sentence without a full stop.
std::string why_no_cudart();

}  // namespace cuda
}  // namespace capsedge
