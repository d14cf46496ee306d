// Capsule operators as kernels of ONNX Runtime's CUDA provider: which nodes of a file have them, and where the GPU's code
// is. What capsedge/runtime/backends/cuda_operators.py and capsedge/runtime/backends/native_library.py do in Python, with the same
// result.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "failure.h"
#include "onnx_file.h"

namespace capsedge::libcapsedge {

// What the CUDA kernels need is not there, or is too old: function bodies run without it.
class NoKernelsHere : public Failure {
 public:
  NoKernelsHere(const std::string& what, const std::string& why, const std::string& fix)
      : Failure(CAPSEDGE_ENVIRONMENT, what, why, fix), reason_(what + " " + why) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

struct CudaOperators {
  std::vector<std::string> names;  // types of capsedge nodes that get a kernel; the others run as their bodies
  std::string kernels;             // the file of the GPU's code
  std::string others;              // why the first other node has no kernel; empty if all have one, or none is wanted
};

// The names that all of whose nodes fit the kernels: a name with a kernel never runs as its body. Shapes and types are those
// that the file states. `bytes` have passed read_onnx.
CudaOperators fitting_operators(std::string_view bytes);

// The file of the GPU's code: `named`, else what the environment variable CAPSEDGE_CUDA_KERNELS names, else kernels.fatbin
// beside this library or in the Python package capsedge-cuda of its environment; empty if there is none. Throws Failure
// (CAPSEDGE_ENVIRONMENT) for one that is named and is not there, and for a package of another version.
std::string find_cuda_kernels(const std::string& named);

// What to register for a file on a GPU; `name` is its name in errors, `kernels` the file of the GPU's code as the caller
// names it. Throws NoKernelsHere if ops is fused and a part is missing; Failure (CAPSEDGE_UNSUPPORTED) if ops is fused and
// a node has no kernel, CAPSEDGE_ENVIRONMENT if a node has neither a kernel nor a body.
CudaOperators choose_operators(std::string_view bytes, const OnnxFile& file, const std::string& name, capsedge_ops ops,
                               const std::string& kernels);

}  // namespace capsedge::libcapsedge
