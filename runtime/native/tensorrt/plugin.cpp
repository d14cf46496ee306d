#include "plugin.h"

#include <algorithm>
#include <cmath>

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;

namespace {

constexpr int64_t kMost = int64_t{1} << 31;

int64_t elements(const Dims& dims, int32_t from = 0) {
  int64_t count = 1;
  for (int32_t k = from; k < dims.nbDims; ++k) count *= dims.d[k];
  return count;
}

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (int32_t k = 0; k < dims.nbDims; ++k) text += (k ? ", " : "") + std::to_string(dims.d[k]);
  return text + "]";
}

// "input 'weight' has shape [..]: wanted [..]", or empty. A wanted size of -1 is any.
std::string expect(const char* name, const Dims& found, const std::vector<int64_t>& wanted) {
  bool fits = found.nbDims == static_cast<int32_t>(wanted.size());
  std::string text;
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (fits) fits = wanted[k] < 0 ? found.d[k] >= 0 && found.d[k] < kMost : found.d[k] == wanted[k];
    text += (k ? ", " : "") + (wanted[k] < 0 ? std::string("?") : std::to_string(wanted[k]));
  }
  return fits ? "" : std::string("input '") + name + "' has shape " + text_of(found) + ": wanted [" + text + "]";
}

int64_t side_of(int64_t size) {
  const int64_t side = std::llround(std::sqrt(static_cast<double>(size)));
  return side * side == size ? side : 0;
}

int32_t axis_of(const Values& values, int32_t rank) {
  const int32_t axis = integer(Operator::kSquash, values, "axis");
  return axis < 0 ? axis + rank : axis;
}

int32_t narrow(int64_t size) { return static_cast<int32_t>(size); }

int32_t type_of(DataType type) { return type == DataType::kHALF ? CAPSEDGE_CUDA_FLOAT16 : CAPSEDGE_CUDA_FLOAT; }

}  // namespace

Plugin::Plugin(Operator op, const Values& values) : op_(op), values_(values), text_(to_text(op, values)) {
  fields_ = write_fields(op_, values_);
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
    return new Plugin(op_, values_);
  } catch (...) {
    return nullptr;
  }
}

const char* Plugin::getPluginName() const noexcept { return spec_of(op_).name; }
const char* Plugin::getPluginVersion() const noexcept { return kVersion; }
const char* Plugin::getPluginNamespace() const noexcept { return kNamespace; }
int32_t Plugin::getNbOutputs() const noexcept { return static_cast<int32_t>(spec_of(op_).outputs.size()); }
const char* Plugin::getTimingCacheID() noexcept { return text_.c_str(); }
const char* Plugin::getMetadataString() noexcept { return text_.c_str(); }
const PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept { return &collection_; }
IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept { return clone(); }

int32_t Plugin::input_count() const { return static_cast<int32_t>(spec_of(op_).inputs.size()); }

int32_t Plugin::refuse(const std::string& why) const noexcept {
  try {
    log_error(std::string(spec_of(op_).name) + ": " + why);
  } catch (...) {
  }
  return 1;
}

capsedge_cuda_routing Plugin::blank_layer(DataType type) const {
  capsedge_cuda_routing layer{};
  layer.type = layer.weight_type = type_of(type);
  layer.iterations = layer.rows = 1;
  layer.height = layer.width = layer.grid_height = layer.grid_width = 1;
  layer.kernel_height = layer.kernel_width = layer.stride_rows = layer.stride_columns = 1;
  layer.epsilon = number(op_, values_, "epsilon");
  layer.multiprocessors = integer(op_, values_, "multiprocessors");
  return layer;
}

std::string Plugin::layer_of(const Dims* dims, int32_t inputs, DataType type, capsedge_cuda_routing& layer) const {
  if (inputs != input_count()) return std::to_string(inputs) + " inputs: wanted " + std::to_string(input_count());
  layer = blank_layer(type);
  if (op_ == Operator::kDynamic || op_ == Operator::kDynamicV2) return set_dynamic(dims, layer);
  if (op_ == Operator::kVotes) return set_votes(dims, layer);
  const std::string why = set_windows(dims, layer);
  if (!why.empty()) return why;
  return is_em(op_) ? set_em(dims, layer) : set_attention(dims, layer);
}

std::string Plugin::set_dynamic(const Dims* dims, capsedge_cuda_routing& layer) const {
  const bool second = op_ == Operator::kDynamicV2;
  const Dims &u = dims[0], &weight = dims[1], &prior = dims[second ? 3 : 2];
  std::string why = expect("weight", weight, {-1, -1, -1, -1});
  if (!why.empty()) return why;
  const bool one = second && weight.d[0] == 1;
  why = expect("u", u, {-1, one ? -1 : weight.d[0], weight.d[3]});
  if (!why.empty()) return why;
  if (second)
    why = expect("vote_bias", dims[2], {dims[2].nbDims == 3 && dims[2].d[0] == 1 ? 1 : u.d[1], weight.d[1], weight.d[2]});
  if (why.empty()) why = expect("log_prior", prior, {u.d[1], weight.d[1]});
  if (why.empty()) why = expect("bias", dims[second ? 4 : 3], {weight.d[1], weight.d[2]});
  if (!why.empty()) return why;
  layer.operation = CAPSEDGE_CUDA_DYNAMIC;
  layer.images = narrow(u.d[0]);
  layer.types = narrow(u.d[1]);
  layer.one_weight = weight.d[0] < u.d[1];
  layer.vote_biases = second ? narrow(dims[2].d[0]) : 0;
  layer.parents = narrow(weight.d[1]);
  layer.columns = narrow(weight.d[2]);
  layer.inner = narrow(weight.d[3]);
  set_agreement(layer);
  return "";
}

std::string Plugin::set_votes(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims& votes = dims[0];
  std::string why = expect("votes", votes, {-1, -1, -1, -1});
  if (why.empty()) why = expect("log_prior", dims[1], {votes.d[1], votes.d[2]});
  if (why.empty()) why = expect("bias", dims[2], {votes.d[2], votes.d[3]});
  if (!why.empty()) return why;
  layer.operation = CAPSEDGE_CUDA_VOTES;
  layer.images = narrow(votes.d[0]);
  layer.types = narrow(votes.d[1]);
  layer.parents = narrow(votes.d[2]);
  layer.columns = narrow(votes.d[3]);
  layer.inner = 1;
  set_agreement(layer);
  return "";
}

void Plugin::set_agreement(capsedge_cuda_routing& layer) const {
  layer.iterations = integer(op_, values_, "iterations");
  layer.leaky = integer(op_, values_, "leaky");
  layer.agreement_scale = 1.0f;
  if (op_ == Operator::kDynamic) return;
  layer.over_children = integer(op_, values_, "over_children");
  layer.replace = integer(op_, values_, "replace");
  layer.normalize = integer(op_, values_, "normalize");
  layer.elementwise = integer(op_, values_, "elementwise");
  layer.agreement_scale = number(op_, values_, "agreement_scale");
}

std::string Plugin::set_windows(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims &pose = dims[0], &weight = dims[2];
  std::string why = expect("pose", pose, {-1, -1, -1, -1, -1});
  if (why.empty()) why = expect("weight", weight, {-1, -1, pose.d[3], -1, -1, -1});
  if (!why.empty()) return why;
  const bool em = is_em(op_);
  layer.images = narrow(pose.d[0]);
  layer.height = narrow(pose.d[1]);
  layer.width = narrow(pose.d[2]);
  layer.types = narrow(pose.d[3]);
  layer.kernel_height = narrow(weight.d[0]);
  layer.kernel_width = narrow(weight.d[1]);
  layer.parents = narrow(weight.d[3]);
  layer.inner = narrow(weight.d[4]);
  layer.columns = narrow(weight.d[5]);
  layer.shared = em ? integer(op_, values_, "shared") : 0;
  if (em || integer(op_, values_, "matrix_pose")) {
    const int64_t side = side_of(pose.d[4]);
    if (!side || weight.d[4] != side || weight.d[5] != side)
      return "input 'weight' has shape " + text_of(weight) + ": wanted matrices for poses of " +
             std::to_string(pose.d[4]) + " elements, a square number";
    layer.rows = narrow(side);
  } else if (weight.d[4] != pose.d[4]) {
    return "input 'weight' has shape " + text_of(weight) + ": wanted [.., " + std::to_string(pose.d[4]) + ", P]";
  }
  if (layer.shared) return "";
  layer.stride_rows = integer(op_, values_, "strides", 0);
  layer.stride_columns = integer(op_, values_, "strides", 1);
  if (layer.height < layer.kernel_height || layer.width < layer.kernel_width)
    return "the window is larger than the grid of input 'pose' " + text_of(pose);
  layer.grid_height = (layer.height - layer.kernel_height) / layer.stride_rows + 1;
  layer.grid_width = (layer.width - layer.kernel_width) / layer.stride_columns + 1;
  return "";
}

std::string Plugin::set_em(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims& pose = dims[0];
  layer.operation = CAPSEDGE_CUDA_EM;
  layer.iterations = integer(op_, values_, "iterations");
  if (op_ == Operator::kEm) {
    layer.coordinates = integer(op_, values_, "coordinate_addition");
  } else {
    layer.normalize_activations = integer(op_, values_, "normalize_activations");
    layer.ones_first = integer(op_, values_, "ones_first");
  }
  const std::vector<float>& lambdas = numbers(op_, values_, "inverse_temperatures");
  std::copy(lambdas.begin(), lambdas.end(), layer.inverse_temperatures);
  std::string why = expect("a", dims[1], {pose.d[0], pose.d[1], pose.d[2], pose.d[3]});
  if (why.empty()) why = expect("beta_u", dims[3], {layer.parents});
  if (why.empty()) why = expect("beta_a", dims[4], {layer.parents});
  if (why.empty() && op_ == Operator::kEmV2) why = expect("coordinates", dims[5], {pose.d[1], pose.d[2], pose.d[4]});
  return why;
}

std::string Plugin::set_attention(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims &pose = dims[0], &parent = dims[1];
  const int64_t size = static_cast<int64_t>(layer.rows) * layer.columns;
  layer.operation = CAPSEDGE_CUDA_ATTENTION;
  layer.agreement_scale = number(op_, values_, "agreement_scale");
  std::string why = expect("parent", parent, {-1, layer.grid_height, layer.grid_width, layer.parents, size});
  if (why.empty() && parent.d[0] != 1) why = expect("parent", parent, {pose.d[0], -1, -1, -1, -1});
  if (why.empty()) why = expect("scale", dims[3], {size});
  if (why.empty()) why = expect("bias", dims[4], {size});
  if (why.empty()) layer.parent_images = narrow(parent.d[0]);
  return why;
}

void Plugin::set_addresses(const void* const* in, void* const* out, capsedge_cuda_routing& layer) const {
  layer.pose = in[0];
  layer.out_pose = out[0];
  if (op_ == Operator::kDynamic) {
    layer.weight = in[1];
    layer.log_prior = in[2];
    layer.bias = in[3];
    return;
  }
  if (op_ == Operator::kDynamicV2) {
    layer.weight = in[1];
    layer.vote_bias = in[2];
    layer.log_prior = in[3];
    layer.bias = in[4];
    return;
  }
  if (op_ == Operator::kVotes) {
    layer.log_prior = in[1];
    layer.bias = in[2];
    return;
  }
  layer.weight = in[2];
  if (is_em(op_)) {
    layer.activation = in[1];
    layer.beta_u = in[3];
    layer.beta_a = in[4];
    layer.out_activation = out[1];
    if (op_ == Operator::kEmV2) layer.additions = in[5];
  } else {
    layer.parent = in[1];
    layer.scale = in[3];
    layer.bias = in[4];
  }
}

std::string Plugin::check(const Dims* dims, int32_t inputs, DataType type) const {
  if (type != DataType::kFLOAT && type != DataType::kHALF) return "inputs are float or float16";
  if (op_ == Operator::kSquash) {
    if (inputs != input_count()) return std::to_string(inputs) + " inputs: wanted " + std::to_string(input_count());
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
  if (inputs != input_count() || outputs != getNbOutputs()) return 1;
  std::fill(types, types + outputs, input_types[0]);
  return 0;
}

int32_t Plugin::getOutputShapes(const DimsExprs* in, int32_t inputs, const DimsExprs*, int32_t, DimsExprs* out,
                                int32_t outputs, IExprBuilder& builder) noexcept {
  if (inputs != input_count() || outputs != getNbOutputs()) return 1;
  if (op_ == Operator::kSquash) {
    out[0] = in[0];
    return 0;
  }
  if (op_ == Operator::kVotes) {
    if (in[0].nbDims != 4) return refuse("wanted votes [N, I, J, P]");
    out[0].nbDims = 3;
    out[0].d[0] = in[0].d[0];
    out[0].d[1] = in[0].d[2];
    out[0].d[2] = in[0].d[3];
    return 0;
  }
  if (op_ == Operator::kDynamic || op_ == Operator::kDynamicV2) {
    if (in[0].nbDims != 3 || in[1].nbDims != 4) return refuse("wanted u [N, I, Pin] and weight [I, J, Pout, Pin]");
    out[0].nbDims = 3;
    out[0].d[0] = in[0].d[0];
    out[0].d[1] = in[1].d[1];
    out[0].d[2] = in[1].d[2];
    return 0;
  }
  if (in[0].nbDims != 5 || in[2].nbDims != 6) return refuse("wanted pose [N, H, W, C, P] and a weight of 6 dimensions");
  if (op_ == Operator::kAttention) {
    if (in[1].nbDims != 5) return refuse("wanted parent [N, H', W', M, P]");
    out[0] = in[1];
    out[0].d[0] = in[0].d[0];  // constant parents may have a batch of one
    return 0;
  }
  em_output_shapes(in, out, builder);
  return 0;
}

void Plugin::em_output_shapes(const DimsExprs* in, DimsExprs* out, IExprBuilder& builder) const {
  for (int32_t k = 0; k < 2; ++k) {
    out[k].nbDims = 5 - k;
    out[k].d[0] = in[0].d[0];
    for (int32_t axis = 0; axis < 2; ++axis) {
      const IDimensionExpr* one = builder.constant(1);
      if (integer(op_, values_, "shared")) {
        out[k].d[1 + axis] = one;
        continue;
      }
      const IDimensionExpr* stride = builder.constant(integer(op_, values_, "strides", static_cast<size_t>(axis)));
      const IDimensionExpr* room = builder.operation(DimensionOperation::kSUB, *in[0].d[1 + axis], *in[2].d[axis]);
      const IDimensionExpr* steps = builder.operation(DimensionOperation::kFLOOR_DIV, *room, *stride);
      out[k].d[1 + axis] = builder.operation(DimensionOperation::kSUM, *steps, *one);
    }
    out[k].d[3] = in[2].d[3];
  }
  out[0].d[4] = in[0].d[4];
}

bool Plugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* all, int32_t inputs,
                                       int32_t outputs) noexcept {
  if (inputs != input_count() || outputs != getNbOutputs() || position >= inputs + outputs) return false;
  const PluginTensorDesc& mine = all[position].desc;
  const bool known = mine.type == DataType::kFLOAT || mine.type == DataType::kHALF;
  return known && mine.format == TensorFormat::kLINEAR && mine.type == all[0].desc.type;
}

size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                int32_t) const noexcept {
  try {
    if (op_ == Operator::kSquash) return 0;
    std::vector<Dims> dims;
    for (int32_t k = 0; k < inputs; ++k) dims.push_back(in[k].max);
    capsedge_cuda_routing layer;
    if (!layer_of(dims.data(), inputs, in[0].desc.type, layer).empty()) return 0;
    // A smaller batch is split over more blocks and may need more than the largest.
    const bool same_parents = layer.parent_images == 1;
    int64_t bytes = 0;
    for (; layer.images > 0; --layer.images) {
      if (!same_parents) layer.parent_images = layer.images;
      bytes = std::max(bytes, capsedge_cuda_workspace(&layer));
    }
    return static_cast<size_t>(bytes);
  } catch (...) {
    return 0;
  }
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc*, int32_t) noexcept {
  try {
    Dims dims[8];
    for (int32_t k = 0; k < std::min(inputs, 8); ++k) dims[k] = in[k].dims;
    const std::string why = check(dims, inputs, in[0].type);
    return why.empty() ? 0 : refuse(why);
  } catch (...) {
    return 1;
  }
}

int32_t Plugin::enqueue(const PluginTensorDesc* in_desc, const PluginTensorDesc*, const void* const* in,
                        void* const* out, void* workspace, cudaStream_t stream) noexcept {
  try {
    char error[256] = "";
    if (op_ == Operator::kSquash) {
      const Dims& dims = in_desc[0].dims;
      const int32_t axis = axis_of(values_, dims.nbDims);
      int64_t outer = 1;
      for (int32_t k = 0; k < axis; ++k) outer *= dims.d[k];
      const int failed = capsedge_cuda_squash(in[0], out[0], outer, static_cast<int32_t>(dims.d[axis]),
                                              elements(dims, axis + 1), number(op_, values_, "epsilon"),
                                              type_of(in_desc[0].type), stream, error, sizeof error);
      return failed ? refuse(error) : 0;
    }
    Dims dims[8];
    for (int32_t k = 0; k < input_count(); ++k) dims[k] = in_desc[k].dims;
    capsedge_cuda_routing layer;
    const std::string why = layer_of(dims, input_count(), in_desc[0].type, layer);
    if (!why.empty()) return refuse(why);
    set_addresses(in, out, layer);
    // getWorkspaceSize has asked for what any batch of the profile needs.
    const int64_t bytes = capsedge_cuda_workspace(&layer);
    return capsedge_cuda_route(&layer, workspace, bytes, stream, error, sizeof error) ? refuse(error) : 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace tensorrt
}  // namespace capsedge
