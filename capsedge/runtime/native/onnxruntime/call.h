// Calls into ONNX Runtime with its statuses as exceptions, and exceptions as its statuses.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "support/error.h"
#include "ort_abi.h"
#include "support/tensor.h"

namespace capsedge::ort {

inline void check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = GetErrorMessage(api)(status);
  ReleaseStatus(api)(status);
  throw Error(message);
}

// True if the call succeeded; a failure is forgotten.
inline bool succeeded(const OrtApi* api, OrtStatus* status) {
  if (status) ReleaseStatus(api)(status);
  return status == nullptr;
}

template <typename F>
OrtStatus* guarded(const OrtApi* api, F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Error& e) {
    return CreateStatus(api)(ORT_INVALID_ARGUMENT, e.what());
  } catch (const std::bad_alloc&) {
    return CreateStatus(api)(ORT_FAIL, "capsedge: not enough memory");
  } catch (const std::exception& e) {
    return CreateStatus(api)(ORT_FAIL, e.what());
  } catch (...) {
    return CreateStatus(api)(ORT_FAIL, "capsedge: unknown failure");
  }
}

struct ReleaseInfo {
  const OrtApi* api;
  void operator()(OrtTensorTypeAndShapeInfo* info) const { ReleaseTensorTypeAndShapeInfo(api)(info); }
};
using Info = std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseInfo>;

inline Shape shape_of(const OrtApi* api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api, GetDimensionsCount(api)(info, &rank));
  Shape shape(rank);
  check(api, GetDimensions(api)(info, shape.data(), rank));
  return shape;
}

inline Type type_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return Type::kFloat;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return Type::kFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return Type::kInt8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return Type::kUint8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return Type::kInt32;
  }
  throw Error("a tensor has type " + std::to_string(type) + " of ONNX, which no operator takes");
}

inline Tensor tensor_of(const OrtApi* api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api, GetTensorTypeAndShape(api)(value, &raw));
  const Info info(raw, {api});
  ONNXTensorElementDataType type{};
  check(api, GetTensorElementType(api)(raw, &type));
  void* data = nullptr;
  check(api, GetTensorMutableData(api)(const_cast<OrtValue*>(value), &data));
  return {data, shape_of(api, raw), type_of(type)};
}

}  // namespace capsedge::ort
