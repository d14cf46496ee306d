// The CUDA driver, for what a CUDA runtime before 12.8 lacks: loading a file of kernels, and running them from it.
#pragma once

#include "cudart_abi.h"

namespace capsedge {
namespace cuda {

// Replaces the runtime's functions that need a loaded file by the driver's. False without a driver for CUDA 12.0 or newer.
bool take_from_driver(cudart::Functions& functions);

}  // namespace cuda
}  // namespace capsedge
