// The operators as ONNX Runtime registers them, with their kernels.
#pragma once

#include "custom_op.h"

namespace capsedge::ort {

// For the CPU provider.
CustomOp cpu_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating);

// For the CUDA provider. The CUDA kernels must be loaded before a session runs it.
CustomOp cuda_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating);

}  // namespace capsedge::ort
