#include "plugin.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels_file.h"

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;

namespace {

constexpr std::string_view kChildAxis = "I";  // the axis of children in the specification

// The multiprocessors that the engine was built for; Squash, whose grid does not depend on them, stores none.
int32_t multiprocessors_of(OperatorId op, const Values& values) {
  return op == OperatorId::kSquash ? 0 : PluginAttributes(op, values).integer("multiprocessors");
}

}  // namespace

Plugin::Plugin(OperatorId op, const Values& values, std::shared_ptr<Workspace> workspace)
    : op_(op),
      values_(values),
      node_(spec_of(op), PluginAttributes(op, values), multiprocessors_of(op, values)),
      text_(to_text(op, values)),
      workspace_(std::move(workspace)) {
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
// Before the first enqueue, which a CUDA graph may capture.
IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept {
  try {
    const std::string why = load_kernels();
    if (why.empty()) return clone();
    refuse(why);
  } catch (...) {
  }
  return nullptr;
}

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

std::string Plugin::prepare(const Dims* dims, int32_t inputs, DataType type, CudaCall& call) const {
  if (type != DataType::kFLOAT && type != DataType::kHALF) return "inputs are float or float16";
  const std::string why = check_count(inputs);
  if (!why.empty()) return why;
  std::array<ShapeView, kMostInputs> shapes;
  for (size_t k = 0; k < static_cast<size_t>(inputs); ++k)
    shapes[k] = {dims[k].d, static_cast<size_t>(std::max(dims[k].nbDims, 0))};
  const int32_t stored = type == DataType::kHALF ? CAPSEDGE_CUDA_FLOAT16 : CAPSEDGE_CUDA_FLOAT;
  return node_.prepare(shapes.data(), static_cast<size_t>(inputs), stored, call);
}

std::string Plugin::workspace(const Dims* dims, int32_t inputs, DataType type, int64_t& bytes) const {
  CudaCall call;
  const std::string why = prepare(dims, inputs, type, call);
  return why.empty() ? node_.workspace(call, bytes) : why;
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                int32_t outputs) noexcept {
  try {
    if (outputs != getNbOutputs()) return refuse(std::to_string(outputs) + " outputs");
    std::vector<Dims> dims;
    for (int32_t k = 0; k < inputs; ++k) dims.push_back(in[k].max);
    int64_t bytes = 0;
    const std::string why = workspace(dims.data(), inputs, in[0].desc.type, bytes);
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
  if (spec.has_attribute("shared") && PluginAttributes(op_, values_).integer("shared")) return one;
  const IDimensionExpr* stride = builder.constant(PluginAttributes(op_, values_).integer("strides", source.axis));
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
      int64_t needed = 0;
      const std::string why = workspace(dims.data(), inputs, in[0].desc.type, needed);
      if (!why.empty()) {
        refuse(why);
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
    int64_t bytes = 0;
    const std::string why = workspace(dims.data(), inputs, in[0].type, bytes);
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
    // Squash has one input, and TensorRT may run it without a change of shapes.
    const int32_t inputs = op_ == OperatorId::kSquash ? 1 : inputs_;
    Dims dims[kMostInputs];
    for (int32_t k = 0; k < inputs; ++k) dims[k] = in_desc[k].dims;
    CudaCall call;
    std::string why = load_kernels();
    if (why.empty()) why = prepare(dims, inputs, in_desc[0].type, call);
    // TensorRT does not report how much it provides; it is what was requested. Older engines do not record the request.
    int64_t bytes = *workspace_;
    if (why.empty() && bytes == kNotAsked) why = node_.workspace(call, bytes);
    if (why.empty()) why = node_.launch(call, in, static_cast<size_t>(inputs), out, {workspace, bytes}, stream);
    return why.empty() ? 0 : refuse(why);
  } catch (...) {
    return 1;
  }
}

}  // namespace tensorrt
}  // namespace capsedge
