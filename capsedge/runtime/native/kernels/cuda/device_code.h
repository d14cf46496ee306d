// What a launch takes for a kernel: from the file that this process has loaded.
#pragma once

#include <string>

#include "kernels.h"

namespace capsedge {
namespace cuda {

// Null until a file is loaded.
const void* code_of(Kernel kernel);

// Loads the fat binary, or what is beside it for a driver of CUDA 12, once per process. Returns an empty string, or what
// is wrong.
std::string load_code(const char* path);

}  // namespace cuda
}  // namespace capsedge
