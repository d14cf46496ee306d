// Shape inference: what is known of the inputs' shapes when a model is loaded becomes the outputs'.
#pragma once

#include "operators.h"
#include "ort_abi.h"

namespace capsedge::ort {

OrtStatus* infer_shapes(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context) noexcept;

}  // namespace capsedge::ort
