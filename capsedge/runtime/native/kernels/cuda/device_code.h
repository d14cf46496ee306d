// What a launch takes for a kernel: from the fat binary that this process has loaded, or from this library itself.
#pragma once

#include <string>

#include "kernels.h"

namespace capsedge {
namespace cuda {

// Null until a file is loaded.
const void* code_of(Kernel kernel);

// Loads the fat binary, once per process. Returns an empty string, or what is wrong.
std::string load_code(const char* path);

}  // namespace cuda
}  // namespace capsedge
