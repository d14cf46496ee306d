// Shapes and types of TensorRT, for messages and for the kernels.
#pragma once

#include <NvInferRuntime.h>

#include <string>

#include "capsedge_cuda.h"

namespace capsedge {
namespace tensorrt {

inline std::string text_of(const nvinfer1::Dims& dims) {
  std::string text = "[";
  for (int32_t k = 0; k < dims.nbDims; ++k) text += (k ? ", " : "") + std::to_string(dims.d[k]);
  return text + "]";
}

inline int32_t type_of(nvinfer1::DataType type) {
  return type == nvinfer1::DataType::kHALF ? CAPSEDGE_CUDA_FLOAT16 : CAPSEDGE_CUDA_FLOAT;
}

}  // namespace tensorrt
}  // namespace capsedge
