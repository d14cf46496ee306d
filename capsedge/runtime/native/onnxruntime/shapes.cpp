#include "shapes.h"

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"

namespace capsedge::ort {

namespace {

// A dimension as stated in the model: a number, a name, or neither (-1 and no name).
struct Dim {
  int64_t size = -1;
  std::string name;
};
using Dims = std::vector<Dim>;

// ONNX Runtime treats a dimension without a name as a number, even if it is -1, and folds it into later
// constants (the Shape of torch.full_like). A unique name marks it as free and different from every other
// dimension.
std::string free_dimension() {
  static std::atomic<uint64_t> count{0};
  return "capsedge_free_" + std::to_string(++count);
}

class Context {
 public:
  Context(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context)
      : api_(api), op_(op), context_(context) {}

  const OperatorSpec& spec() const { return op_; }

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
  // Owned by the context.
  const OrtTensorTypeAndShapeInfo* raw_input(size_t index) const {
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, ShapeInferContext_GetInputTypeShape(api_)(context_, index, &raw));
    return raw;
  }

  const OrtApi* api_;
  const OperatorSpec& op_;
  OrtShapeInferContext* context_;
};

// The number of positions of windows of this size; unknown if it cannot be determined or does not fit.
Dim positions(Dim size, Dim window, int64_t stride) {
  if (size.size < 0 || window.size < 1 || stride < 1 || size.size < window.size) return {};
  return {(size.size - window.size) / stride + 1, ""};
}

// What a window covers of the map with its dilation, and the map with its padding. What fits no number is left to the
// kernel, like wrong ranks.
void extend(const Context& context, size_t axis, Dim& size, Dim& window) {
  if (context.spec().has_attribute("pads")) {
    const auto pads = context.integers("pads");
    int64_t padding = 0;
    if (size.size >= 0 && (__builtin_add_overflow(pads[axis], pads[2 + axis], &padding) ||
                           __builtin_add_overflow(size.size, padding, &size.size)))
      size.size = -1;
  }
  if (context.spec().has_attribute("dilations")) {
    const int64_t dilation = context.integers("dilations")[axis];
    if (window.size >= 1 && (__builtin_mul_overflow(dilation, window.size - 1, &window.size) ||
                             __builtin_add_overflow(window.size, 1, &window.size)))
      window.size = -1;
  }
}

// A dimension as the table's shapes give it; none where an input that it follows from has another rank.
std::optional<Dim> dimension(const Context& context, std::string_view name) {
  const auto at = [&](Place place) -> std::optional<Dim> {
    const Dims found = context.input(place.input);
    if (found.size() != context.spec().inputs[place.input].shape.size()) return std::nullopt;
    return found[place.axis];
  };
  const DimensionSource source = context.spec().source_of(name);
  auto size = at(source.size);
  if (!size || !source.window) return size;
  auto window = at(*source.window);
  if (!window) return std::nullopt;
  if (context.spec().has_attribute("shared") && context.flag("shared")) return Dim{1, ""};
  extend(context, source.axis, *size, *window);
  return positions(*size, *window, context.integers("strides")[source.axis]);
}

// The kernel reports wrong ranks; its message names the input.
void infer(const Context& context) {
  const OperatorSpec& spec = context.spec();
  std::vector<Dims> outputs;
  for (const Parameter& output : spec.outputs) {
    if (std::string_view(output.shape[0]) == "...") {  // any dimensions: those of the first input
      outputs.push_back(context.input(0));
      if (outputs.back().empty()) return;
      continue;
    }
    outputs.emplace_back();
    for (const char* name : output.shape) {
      const auto found = dimension(context, name);
      if (!found) return;
      outputs.back().push_back(*found);
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) context.output(i, outputs[i]);
}

}  // namespace

OrtStatus* infer_shapes(const OrtApi* api, const OperatorSpec& op, OrtShapeInferContext* context) noexcept {
  return guarded(api, [&] { infer(Context(api, op, context)); });
}

}  // namespace capsedge::ort
