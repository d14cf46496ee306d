#include "shapes.h"

#include <cstring>
#include <string>
#include <vector>

#include "call.h"

namespace capsedge::ort {

namespace {

// A dimension as it stands in the model: a number, a name, or neither (-1 and no name).
struct Dim {
  int64_t size = -1;
  std::string name;
};
using Dims = std::vector<Dim>;

class Context {
 public:
  Context(const OrtApi* api, OrtShapeInferContext* context) : api_(api), context_(context) {}

  // An input without a known shape has rank 0.
  Dims input(size_t index) const {
    const OrtTensorTypeAndShapeInfo* info = raw_input(index);
    size_t rank = 0;
    check(api_, GetDimensionsCount(api_)(info, &rank));
    std::vector<int64_t> sizes(rank);
    std::vector<const char*> names(rank);
    check(api_, GetDimensions(api_)(info, sizes.data(), rank));
    check(api_, GetSymbolicDimensions(api_)(info, names.data(), rank));
    Dims dims(rank);
    for (size_t i = 0; i < rank; ++i) dims[i] = {sizes[i], names[i] ? names[i] : ""};
    return dims;
  }

  void output(size_t index, const Dims& dims) const {
    ONNXTensorElementDataType type{};
    check(api_, GetTensorElementType(api_)(raw_input(0), &type));
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, CreateTensorTypeAndShapeInfo(api_)(&raw));
    const Info info(raw, {api_});
    std::vector<int64_t> sizes;
    std::vector<const char*> names;
    for (const Dim& d : dims) {
      sizes.push_back(d.size);
      names.push_back(d.name.c_str());
    }
    check(api_, SetTensorElementType(api_)(raw, type));
    check(api_, SetDimensions(api_)(raw, sizes.data(), sizes.size()));
    check(api_, SetSymbolicDimensions(api_)(raw, names.data(), names.size()));
    check(api_, ShapeInferContext_SetOutputTypeShape(api_)(context_, index, raw));
  }

  std::vector<int64_t> integers(const char* name, std::vector<int64_t> otherwise) const {
    const OrtOpAttr* attribute = nullptr;
    if (!succeeded(api_, ShapeInferContext_GetAttribute(api_)(context_, name, &attribute)) || attribute == nullptr)
      return otherwise;
    int64_t values[4] = {};
    size_t bytes = 0;
    const OrtOpAttrType type = otherwise.size() == 1 ? ORT_OP_ATTR_INT : ORT_OP_ATTR_INTS;
    const size_t room = otherwise.size() * sizeof(int64_t);
    if (!succeeded(api_, ReadOpAttr(api_)(attribute, type, values, room, &bytes)) || bytes != room) return otherwise;
    return {values, values + otherwise.size()};
  }

 private:
  // Stays the context's.
  const OrtTensorTypeAndShapeInfo* raw_input(size_t index) const {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, ShapeInferContext_GetInputTypeShape(api_)(context_, index, &raw));
    return raw;
  }

  const OrtApi* api_;
  OrtShapeInferContext* context_;
};

Dim output_dim(const Dim& in, const Dim& kernel, int64_t stride) {
  if (in.size < 0 || kernel.size < 1 || stride < 1 || in.size < kernel.size) return {};
  return {(in.size - kernel.size) / stride + 1, ""};
}

void infer_conv(const Context& context) {
  const Dims x = context.input(0), weight = context.input(3);
  if (x.size() != 4 || weight.size() != 4) return;
  const auto strides = context.integers("strides", {1, 1}), dilations = context.integers("dilations", {1, 1});
  const auto pads = context.integers("pads", {0, 0, 0, 0});
  Dims y{x[0], weight[0], {}, {}};
  for (size_t i = 0; i < 2; ++i) {
    Dim in = x[2 + i], kernel = weight[2 + i];
    // What fits no number is left to the kernel, too.
    int64_t padding = 0;
    if (in.size >= 0 && (__builtin_add_overflow(pads[i], pads[2 + i], &padding) ||
                         __builtin_add_overflow(in.size, padding, &in.size)))
      in.size = -1;
    if (kernel.size >= 1 && (__builtin_mul_overflow(dilations[i], kernel.size - 1, &kernel.size) ||
                             __builtin_add_overflow(kernel.size, 1, &kernel.size)))
      kernel.size = -1;
    y[2 + i] = output_dim(in, kernel, strides[i]);
  }
  context.output(0, y);
}

void infer(const char* op, const Context& context) {
  // Wrong ranks are left to the kernel, whose message names the input.
  if (std::strcmp(op, "QuantizedConv") == 0) {
    infer_conv(context);
    return;
  }
  if (std::strncmp(op, "Quantized", 9) == 0) op += 9;  // the weight's scale comes after all that is looked at
  if (std::strcmp(op, "Squash") == 0 || std::strcmp(op, "PoseNormalization") == 0) {
    const Dims x = context.input(0);
    if (!x.empty()) context.output(0, x);
  } else if (std::strcmp(op, "DynamicRouting") == 0) {
    const Dims u = context.input(0), weight = context.input(1);
    if (u.size() == 3 && weight.size() == 4) context.output(0, {u[0], weight[1], weight[2]});
  } else if (std::strcmp(op, "AttentionRouting") == 0) {
    const Dims parent = context.input(1);
    if (parent.size() == 5) context.output(0, parent);
  } else if (std::strcmp(op, "UniformRouting") == 0) {
    const Dims pose = context.input(0), weight = context.input(1);
    if (pose.size() != 5 || weight.size() != 6) return;
    const auto strides = context.integers("strides", {1, 1});
    const Dim size = context.integers("matrix_pose", {1})[0] == 1 ? pose[4] : weight[5];
    context.output(0, {pose[0], output_dim(pose[1], weight[0], strides[0]),
                       output_dim(pose[2], weight[1], strides[1]), weight[3], size});
  } else {
    const Dims pose = context.input(0), weight = context.input(2);
    if (pose.size() != 5 || weight.size() != 6) return;
    const bool shared = context.integers("shared", {0})[0] == 1;
    const auto strides = context.integers("strides", {1, 1});
    const Dim one{1, ""};
    const Dim height = shared ? one : output_dim(pose[1], weight[0], strides[0]);
    const Dim width = shared ? one : output_dim(pose[2], weight[1], strides[1]);
    context.output(0, {pose[0], height, width, weight[3], pose[4]});
    context.output(1, {pose[0], height, width, weight[3]});
  }
}

}  // namespace

OrtStatus* infer_shapes(const OrtApi* api, const char* op, OrtShapeInferContext* context) noexcept {
  return guarded(api, [&] { infer(op, Context(api, context)); });
}

}  // namespace capsedge::ort
