#include "plugin.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "shapes.h"

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;

namespace {

constexpr std::string_view kChildAxis = "I";  // the axis of children in the specification

int64_t elements(const Dims& dims, int32_t from = 0) {
  int64_t count = 1;
  for (int32_t k = from; k < dims.nbDims; ++k) count *= dims.d[k];
  return count;
}

int32_t axis_of(const Values& values, int32_t rank) {
  const int32_t axis = integer(OperatorId::kSquash, values, "axis");
  return axis < 0 ? axis + rank : axis;
}

}  // namespace

Plugin::Plugin(OperatorId op, const Values& values, std::shared_ptr<Workspace> workspace)
    : op_(op), input_shapes_(spec_of(op)), values_(values), text_(to_text(op, values)), workspace_(std::move(workspace)) {
  fields_ = write_fields(op_, values_);
  if (op_ != OperatorId::kSquash) fields_.push_back(workspace_field(&written_workspace_));
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
  switch (type) {
    case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

IPluginV3* Plugin::clone() noexcept {
  try {
    auto made = std::make_unique<Plugin>(op_, values_, workspace_);
    made->inputs_ = inputs_;
    return made.release();
  } catch (...) {
    return nullptr;
  }
}

const char* Plugin::getPluginName() const noexcept { return spec_of(op_).name; }
const char* Plugin::getPluginVersion() const noexcept { return kPluginVersion; }
const char* Plugin::getPluginNamespace() const noexcept { return kDomain; }
int32_t Plugin::getNbOutputs() const noexcept { return static_cast<int32_t>(spec_of(op_).outputs.size()); }
const char* Plugin::getTimingCacheID() noexcept { return text_.c_str(); }
const char* Plugin::getMetadataString() noexcept { return text_.c_str(); }
const PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  written_workspace_ = *workspace_;
  return &collection_;
}
IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept { return clone(); }

std::string Plugin::check_count(int32_t inputs) const {
  const OperatorSpec& spec = spec_of(op_);
  if (spec.takes(static_cast<size_t>(std::max(inputs, 0)))) return "";
  return std::to_string(inputs) + " inputs: wanted " + spec.wanted_inputs();
}

int32_t Plugin::refuse(const std::string& why) const noexcept {
  try {
    log_error(std::string(spec_of(op_).name) + ": " + why);
  } catch (...) {
  }
  return 1;
}
std::string Plugin::check(const Dims* dims, int32_t inputs, DataType type) const {
  if (type != DataType::kFLOAT && type != DataType::kHALF) return "inputs are float or float16";
  if (op_ == OperatorId::kSquash) {
    const std::string why = check_count(inputs);
    if (!why.empty()) return why;
    const int32_t axis = axis_of(values_, dims[0].nbDims);
    if (axis < 0 || axis >= dims[0].nbDims) return "attribute 'axis' lies outside the shape " + text_of(dims[0]);
    return "";
  }
  capsedge_cuda_routing layer;
  const std::string why = layer_of(dims, inputs, type, layer);
  if (!why.empty()) return why;
  return capsedge_cuda_workspace(&layer) < 0 ? capsedge_cuda_describe(&layer) : "";
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                int32_t outputs) noexcept {
  try {
    if (outputs != getNbOutputs()) return refuse(std::to_string(outputs) + " outputs");
    std::vector<Dims> dims;
    for (int32_t k = 0; k < inputs; ++k) dims.push_back(in[k].max);
    const std::string why = check(dims.data(), inputs, in[0].desc.type);
    return why.empty() ? 0 : refuse(why);
  } catch (...) {
    return 1;
  }
}

int32_t Plugin::getOutputDataTypes(DataType* types, int32_t outputs, const DataType* input_types,
                                   int32_t inputs) const noexcept {
  if (!check_count(inputs).empty() || outputs != getNbOutputs()) return 1;
  std::fill(types, types + outputs, input_types[0]);
  return 0;
}

int32_t Plugin::getOutputShapes(const DimsExprs* in, int32_t inputs, const DimsExprs*, int32_t, DimsExprs* out,
                                int32_t outputs, IExprBuilder& builder) noexcept {
  if (!check_count(inputs).empty() || outputs != getNbOutputs()) return 1;
  try {
    const OperatorSpec& spec = spec_of(op_);
    for (int32_t k = 0; k < outputs; ++k) {
      const auto& shape = spec.outputs[static_cast<size_t>(k)].shape;
      if (std::string_view(shape[0]) == "...") {  // any dimensions: those of the first input
        out[k] = in[0];
        continue;
      }
      out[k].nbDims = static_cast<int32_t>(shape.size());
      for (int32_t axis = 0; axis < out[k].nbDims; ++axis) {
        std::string why;
        out[k].d[axis] = dimension(shape[static_cast<size_t>(axis)], in, builder, why);
        if (out[k].d[axis] == nullptr) return refuse(why);
      }
    }
    return 0;
  } catch (...) {
    return 1;
  }
}

const IDimensionExpr* Plugin::dimension(std::string_view name, const DimsExprs* in, IExprBuilder& builder,
                                        std::string& why) const {
  const OperatorSpec& spec = spec_of(op_);
  const auto at = [&](Place place) -> const IDimensionExpr* {
    const Parameter& input = spec.inputs[place.input];
    const DimsExprs& found = in[place.input];
    if (found.nbDims == static_cast<int32_t>(input.shape.size())) return found.d[place.axis];
    why = "";
    for (const char* each : input.shape) why += (why.empty() ? "" : ", ") + std::string(each);
    why = std::string("wanted ") + input.name + " [" + why + "]";
    return nullptr;
  };
  const DimensionSource source = spec.source_of(name);
  const IDimensionExpr* size = at(source.size);
  if (size == nullptr || !source.window) return size;
  const IDimensionExpr* window = at(*source.window);
  if (window == nullptr) return nullptr;
  const IDimensionExpr* one = builder.constant(1);
  if (spec.has_attribute("shared") && integer(op_, values_, "shared")) return one;
  const IDimensionExpr* stride = builder.constant(integer(op_, values_, "strides", source.axis));
  const IDimensionExpr* room = builder.operation(DimensionOperation::kSUB, *size, *window);
  const IDimensionExpr* steps = builder.operation(DimensionOperation::kFLOOR_DIV, *room, *stride);
  return builder.operation(DimensionOperation::kSUM, *steps, *one);
}

// Their inputs and outputs are all float, or all float16.
constexpr bool plugins_have_one_type() {
  for (const OperatorSpec& spec : kOperators) {
    if (!spec.plugin) continue;
    for (const Parameter& input : spec.inputs)
      if (input.type != 'T') return false;
    for (const Parameter& output : spec.outputs)
      if (output.type != 'T') return false;
  }
  return true;
}
static_assert(plugins_have_one_type(), "supportsFormatCombination takes one type for all");

bool Plugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* all, int32_t inputs,
                                       int32_t outputs) noexcept {
  if (!check_count(inputs).empty() || outputs != getNbOutputs() || position >= inputs + outputs) return false;
  const PluginTensorDesc& mine = all[position].desc;
  const bool known = mine.type == DataType::kFLOAT || mine.type == DataType::kHALF;
  return known && mine.format == TensorFormat::kLINEAR && mine.type == all[0].desc.type;
}

// The fewest and most children of a profile; 1 where the operator has windows of them.
std::pair<int64_t, int64_t> Plugin::children_of(const DynamicPluginTensorDesc* in) const {
  const auto& shape = spec_of(op_).inputs[0].shape;
  if (shape.size() < 2 || std::string_view(shape[1]) != kChildAxis || in[0].max.nbDims < 2) return {1, 1};
  return {std::max<int64_t>(1, in[0].min.d[1]), in[0].max.d[1]};
}

// The largest shapes of a profile with that many children.
std::vector<Dims> Plugin::largest(const DynamicPluginTensorDesc* in, int32_t inputs, int64_t children) const {
  std::vector<Dims> dims;
  const int64_t most = children_of(in).second;
  for (int32_t k = 0; k < inputs; ++k) {
    dims.push_back(in[k].max);
    const auto& shape = spec_of(op_).inputs[static_cast<size_t>(k)].shape;
    for (int32_t axis = 0; axis < std::min(dims.back().nbDims, static_cast<int32_t>(shape.size())); ++axis)
      if (std::string_view(shape[static_cast<size_t>(axis)]) == kChildAxis && dims.back().d[axis] == most) dims.back().d[axis] = children;
  }
  return dims;
}

size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                int32_t) const noexcept {
  try {
    if (op_ == OperatorId::kSquash) return 0;
    // What is enough for a batch is enough for every smaller one, but few children may need more than many.
    const auto [fewest, most] = children_of(in);
    int64_t bytes = 0;
    for (int64_t children = fewest; children <= most; ++children) {
      const std::vector<Dims> dims = largest(in, inputs, children);
      capsedge_cuda_routing layer;
      const std::string why = layer_of(dims.data(), inputs, in[0].desc.type, layer);
      const int64_t needed = why.empty() ? capsedge_cuda_workspace(&layer) : -1;
      if (needed < 0) {
        refuse(why.empty() ? capsedge_cuda_describe(&layer) : why);
        return 0;
      }
      bytes = std::max(bytes, needed);
    }
    int64_t before = *workspace_;
    while (before < bytes && !workspace_->compare_exchange_weak(before, bytes)) continue;
    return static_cast<size_t>(bytes);
  } catch (...) {
    refuse("out of memory");
    return 0;
  }
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc*, int32_t) noexcept {
  try {
    std::vector<Dims> dims;
    for (int32_t k = 0; k < inputs; ++k) dims.push_back(in[k].dims);
    const std::string why = check(dims.data(), inputs, in[0].type);
    if (!why.empty()) return refuse(why);
    inputs_ = inputs;
    return 0;
  } catch (...) {
    return 1;
  }
}

int32_t Plugin::enqueue(const PluginTensorDesc* in_desc, const PluginTensorDesc*, const void* const* in,
                        void* const* out, void* workspace, cudaStream_t stream) noexcept {
  try {
    char error[256] = "";
    if (op_ == OperatorId::kSquash) {
      const Dims& dims = in_desc[0].dims;
      const int32_t axis = axis_of(values_, dims.nbDims);
      int64_t outer = 1;
      for (int32_t k = 0; k < axis; ++k) outer *= dims.d[k];
      const int failed = capsedge_cuda_squash(in[0], out[0], outer, static_cast<int32_t>(dims.d[axis]),
                                              elements(dims, axis + 1), number(op_, values_, "epsilon"),
                                              type_of(in_desc[0].type), stream, error, sizeof error);
      return failed ? refuse(error) : 0;
    }
    Dims dims[kMostInputs];
    for (int32_t k = 0; k < inputs_; ++k) dims[k] = in_desc[k].dims;
    capsedge_cuda_routing layer;
    const std::string why = layer_of(dims, inputs_, in_desc[0].type, layer);
    if (!why.empty()) return refuse(why);
    set_addresses(in, out, layer);
    // TensorRT does not report how much it provides; it is what was requested. Older engines do not record the request.
    const int64_t asked = *workspace_, bytes = asked == kNotAsked ? capsedge_cuda_workspace(&layer) : asked;
    return capsedge_cuda_route(&layer, workspace, bytes, stream, error, sizeof error) ? refuse(error) : 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace tensorrt
}  // namespace capsedge
