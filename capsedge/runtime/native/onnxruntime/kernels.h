// The operators as ONNX Runtime registers them, with their kernels.
#pragma once

#include "custom_op.h"

namespace capsedge::ort {

// For the CPU provider.
CustomOp cpu_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating);

// The file of the CUDA kernels' code, one for the process. It is loaded with the first node, when the provider has loaded
// the CUDA runtime that both then use. Throws Error for another file than before.
void set_cuda_kernels(const std::string& path);

// For the CUDA provider.
CustomOp cuda_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating);

}  // namespace capsedge::ort
