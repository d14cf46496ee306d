// The layers that the plugins run: from the shapes of their inputs and their attributes.
#include <algorithm>
#include <cmath>

#include "plugin.h"
#include "shapes.h"

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;

namespace {

constexpr int64_t kMost = int64_t{1} << 31;

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

int32_t narrow(int64_t size) { return static_cast<int32_t>(size); }

// Children, parents and the weight [I, J, Pout, Pin] between them.
void set_capsules(const Dims& u, const Dims& weight, capsedge_cuda_routing& layer) {
  layer.images = narrow(u.d[0]);
  layer.types = narrow(u.d[1]);
  layer.parents = narrow(weight.d[1]);
  layer.columns = narrow(weight.d[2]);
  layer.inner = narrow(weight.d[3]);
}

}  // namespace

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
  std::string why = check_count(inputs);
  if (!why.empty()) return why;
  layer = blank_layer(type);
  const bool dynamic = op_ == OperatorId::kDynamicRouting;
  if ((dynamic && inputs > 5) || (op_ == OperatorId::kVoteRouting && inputs > 3))
    return "the plugin has no input 'image_prior' or 'mask': build with the function body, as capsedge build does";
  if (dynamic) return set_dynamic(dims, inputs, layer);
  if (op_ == OperatorId::kVoteRouting) return set_votes(dims, layer);
  if (op_ == OperatorId::kSelfAttentionRouting) return set_self_attention(dims, layer);
  why = set_windows(dims, layer);
  if (!why.empty()) return why;
  return op_ == OperatorId::kEMRouting ? set_em(dims, inputs, layer) : set_attention(dims, layer);
}

std::string Plugin::set_dynamic(const Dims* dims, int32_t inputs, capsedge_cuda_routing& layer) const {
  const Dims &u = dims[0], &weight = dims[1];
  std::string why = expect("weight", weight, {-1, -1, -1, -1});
  if (!why.empty()) return why;
  why = expect("u", u, {-1, weight.d[0] == 1 ? -1 : weight.d[0], weight.d[3]});
  if (why.empty()) why = expect("log_prior", dims[2], {u.d[1], weight.d[1]});
  if (why.empty()) why = expect("bias", dims[3], {weight.d[1], weight.d[2]});
  if (why.empty() && inputs > 4) {
    const bool one = dims[4].nbDims == 3 && dims[4].d[0] == 1;
    why = expect("vote_bias", dims[4], {one ? 1 : u.d[1], weight.d[1], weight.d[2]});
  }
  if (!why.empty()) return why;
  layer.operation = CAPSEDGE_CUDA_DYNAMIC;
  set_capsules(u, weight, layer);
  layer.one_weight = weight.d[0] < u.d[1];
  layer.vote_biases = inputs > 4 ? narrow(dims[4].d[0]) : 0;
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
  const bool em = op_ == OperatorId::kEMRouting;
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

std::string Plugin::set_em(const Dims* dims, int32_t inputs, capsedge_cuda_routing& layer) const {
  const Dims& pose = dims[0];
  layer.operation = CAPSEDGE_CUDA_EM;
  layer.iterations = integer(op_, values_, "iterations");
  layer.coordinates = integer(op_, values_, "coordinate_addition");
  layer.normalize_activations = integer(op_, values_, "normalize_activations");
  layer.ones_first = integer(op_, values_, "ones_first");
  const std::vector<float>& lambdas = numbers(op_, values_, "inverse_temperatures");
  std::copy(lambdas.begin(), lambdas.end(), layer.inverse_temperatures);
  std::string why = expect("a", dims[1], {pose.d[0], pose.d[1], pose.d[2], pose.d[3]});
  if (why.empty()) why = expect("beta_u", dims[3], {layer.parents});
  if (why.empty()) why = expect("beta_a", dims[4], {layer.parents});
  if (!why.empty() || inputs < 6) return why;
  if (layer.coordinates) return "input 'coordinates' and attribute 'coordinate_addition' exclude each other";
  return expect("coordinates", dims[5], {pose.d[1], pose.d[2], pose.d[4]});
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

std::string Plugin::set_self_attention(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims &u = dims[0], &weight = dims[1];
  std::string why = expect("weight", weight, {-1, -1, -1, -1});
  if (why.empty()) why = expect("u", u, {-1, weight.d[0], weight.d[3]});
  if (why.empty()) why = expect("bias", dims[2], {weight.d[0], weight.d[1]});
  if (!why.empty()) return why;
  layer.operation = CAPSEDGE_CUDA_SELF_ATTENTION;
  set_capsules(u, weight, layer);
  layer.iterations = 2;
  return "";
}

void Plugin::set_addresses(const void* const* in, void* const* out, capsedge_cuda_routing& layer) const {
  layer.pose = in[0];
  layer.out_pose = out[0];
  if (op_ == OperatorId::kDynamicRouting) {
    layer.weight = in[1];
    layer.log_prior = in[2];
    layer.bias = in[3];
    if (inputs_ > 4) layer.vote_bias = in[4];
    return;
  }
  if (op_ == OperatorId::kSelfAttentionRouting) {
    layer.weight = in[1];
    layer.bias = in[2];
    return;
  }
  if (op_ == OperatorId::kVoteRouting) {
    layer.log_prior = in[1];
    layer.bias = in[2];
    return;
  }
  layer.weight = in[2];
  if (op_ == OperatorId::kEMRouting) {
    layer.activation = in[1];
    layer.beta_u = in[3];
    layer.beta_a = in[4];
    layer.out_activation = out[1];
    if (inputs_ > 5) layer.additions = in[5];
  } else {
    layer.parent = in[1];
    layer.scale = in[3];
    layer.bias = in[4];
  }
}

}  // namespace tensorrt
}  // namespace capsedge
