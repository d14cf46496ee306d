// Shape inference: the outputs' shapes, as far as the inputs' shapes are known when a model is loaded.
#pragma once

#include "operators.h"
#include "ort_abi.h"

namespace capsedge::ort {

OrtStatus* infer_shapes(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context) noexcept;

}  // namespace capsedge::ort
