#include "shapes.h"

#include <atomic>
#include <string>
#include <string_view>
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

// ONNX Runtime takes a dimension without a name for a number, even if that is -1, and folds it into the
// constants of what follows (the Shape of torch.full_like). A name of its own says that it is free, and equal
// to no other.
std::string free_dimension() {
  static std::atomic<uint64_t> count{0};
  return "capsedge_free_" + std::to_string(++count);
}

class Context {
 public:
  Context(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context)
      : api_(api), op_(op), context_(context) {}

  // The float operator of one with an INT8 weight: its shapes are the same.
  std::string_view float_operator() const { return op_.quantizes ? op_.quantizes : op_.name; }

  // An input without a known shape has rank 0.
  Dims input(const char* name) const {
    const OrtTensorTypeAndShapeInfo* info = raw_input(op_.input(name));
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
    std::vector<std::string> named;
    std::vector<const char*> names;
    for (const Dim& d : dims) {
      sizes.push_back(d.size);
      named.push_back(d.size < 0 && d.name.empty() ? free_dimension() : d.name);
    }
    for (const std::string& name : named) names.push_back(name.c_str());
    check(api_, SetTensorElementType(api_)(raw, type));
    check(api_, SetDimensions(api_)(raw, sizes.data(), sizes.size()));
    check(api_, SetSymbolicDimensions(api_)(raw, names.data(), names.size()));
    check(api_, ShapeInferContext_SetOutputTypeShape(api_)(context_, index, raw));
  }

  std::vector<int64_t> integers(const char* name) const {
    const AttributeSpec& spec = op_.attribute(name);
    std::vector<int64_t> otherwise(spec.integers.begin(), spec.integers.end());
    const OrtOpAttr* attribute = nullptr;
    if (!succeeded(api_, ShapeInferContext_GetAttribute(api_)(context_, name, &attribute)) || attribute == nullptr)
      return otherwise;
    std::vector<int64_t> values(otherwise.size());
    size_t bytes = 0;
    const OrtOpAttrType type = spec.is_list() ? ORT_OP_ATTR_INTS : ORT_OP_ATTR_INT;
    const size_t room = values.size() * sizeof(int64_t);
    if (!succeeded(api_, ReadOpAttr(api_)(attribute, type, values.data(), room, &bytes)) || bytes != room)
      return otherwise;
    return values;
  }
  bool flag(const char* name) const { return integers(name)[0] == 1; }

 private:
  // Stays the context's.
  const OrtTensorTypeAndShapeInfo* raw_input(size_t index) const {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, ShapeInferContext_GetInputTypeShape(api_)(context_, index, &raw));
    return raw;
  }

  const OrtApi* api_;
  const OperatorSpec& op_;
  OrtShapeInferContext* context_;
};

Dim output_dim(const Dim& in, const Dim& kernel, int64_t stride) {
  if (in.size < 0 || kernel.size < 1 || stride < 1 || in.size < kernel.size) return {};
  return {(in.size - kernel.size) / stride + 1, ""};
}

void infer_conv(const Context& context) {
  const Dims x = context.input("x"), weight = context.input("weight");
  if (x.size() != 4 || weight.size() != 4) return;
  const auto strides = context.integers("strides"), dilations = context.integers("dilations");
  const auto pads = context.integers("pads");
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

void infer_uniform(const Context& context) {
  const Dims pose = context.input("pose"), weight = context.input("weight");
  if (pose.size() != 5 || weight.size() != 6) return;
  const auto strides = context.integers("strides");
  const Dim size = context.flag("matrix_pose") ? pose[4] : weight[5];
  context.output(0, {pose[0], output_dim(pose[1], weight[0], strides[0]), output_dim(pose[2], weight[1], strides[1]),
                     weight[3], size});
}

void infer_em(const Context& context) {
  const Dims pose = context.input("pose"), weight = context.input("weight");
  if (pose.size() != 5 || weight.size() != 6) return;
  const bool shared = context.flag("shared");
  const auto strides = context.integers("strides");
  const Dim one{1, ""};
  const Dim height = shared ? one : output_dim(pose[1], weight[0], strides[0]);
  const Dim width = shared ? one : output_dim(pose[2], weight[1], strides[1]);
  context.output(0, {pose[0], height, width, weight[3], pose[4]});
  context.output(1, {pose[0], height, width, weight[3]});
}

// Wrong ranks are left to the kernel, whose message names the input.
void infer(const Context& context) {
  const std::string_view op = context.float_operator();
  if (op == "Squash" || op == "PoseNormalization") {
    const Dims x = context.input("x");
    if (!x.empty()) context.output(0, x);
  } else if (op == "VoteRouting") {
    const Dims votes = context.input("votes");
    if (votes.size() == 4) context.output(0, {votes[0], votes[2], votes[3]});
  } else if (op == "DynamicRouting" || op == "SelfAttentionRouting") {
    const Dims u = context.input("u"), weight = context.input("weight");
    if (u.size() == 3 && weight.size() == 4) context.output(0, {u[0], weight[1], weight[2]});
  } else if (op == "EMRouting") {
    infer_em(context);
  } else if (op == "AttentionRouting") {
    const Dims parent = context.input("parent");
    if (parent.size() == 5) context.output(0, parent);
  } else if (op == "UniformRouting") {
    infer_uniform(context);
  } else if (op == "QuantizedConv") {
    infer_conv(context);
  }
}

}  // namespace

OrtStatus* infer_shapes(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context) noexcept {
  return guarded(api, [&] { infer(Context(api, op, context)); });
}

}  // namespace capsedge::ort
