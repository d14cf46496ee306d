// The file of the CUDA kernels, which comes with the plugin library.
#pragma once

#include <string>

namespace capsedge {
namespace tensorrt {

// Loads it once for the process: the file that CAPSEDGE_CUDA_KERNELS names, else kernels.fatbin beside this library or in
// the folder above. Returns an empty string, or what is wrong.
std::string load_kernels();

}  // namespace tensorrt
}  // namespace capsedge
