// Builds the layers that the plugins run from the shapes of their inputs and their attributes.
#include <algorithm>
#include <array>
#include <cmath>

#include "plugin.h"
#include "shapes.h"

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;
using namespace places;

namespace {

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
  std::array<ShapeView, kMostInputs> shapes;
  for (int32_t k = 0; k < inputs; ++k)
    shapes[static_cast<size_t>(k)] = {dims[k].d, static_cast<size_t>(std::max(dims[k].nbDims, 0))};
  why = input_shapes_.wrong(shapes.data(), static_cast<size_t>(inputs));
  if (why.empty() && dims[0].d[0] > INT32_MAX) why = "a batch of " + std::to_string(dims[0].d[0]);
  if (!why.empty()) return why;
  if (input_shapes_.plugin_lacks(shapes.data(), static_cast<size_t>(inputs)))
    return "the plugin lacks such inputs: build with the function body, as capsedge build does";
  if (op_ == OperatorId::kDynamicRouting) return set_dynamic(dims, inputs, layer);
  if (op_ == OperatorId::kVoteRouting) return set_votes(dims, layer);
  if (op_ == OperatorId::kSelfAttentionRouting) return set_self_attention(dims, layer);
  why = set_windows(dims, layer);
  if (!why.empty()) return why;
  return op_ == OperatorId::kEMRouting ? set_em(inputs, layer) : set_attention(dims, layer);
}

std::string Plugin::set_dynamic(const Dims* dims, int32_t inputs, capsedge_cuda_routing& layer) const {
  const Dims &u = dims[DynamicRouting::kU], &weight = dims[DynamicRouting::kWeight];
  layer.operation = CAPSEDGE_CUDA_DYNAMIC;
  set_capsules(u, weight, layer);
  layer.one_weight = weight.d[0] < u.d[1];
  layer.vote_biases = inputs > DynamicRouting::kVoteBias ? narrow(dims[DynamicRouting::kVoteBias].d[0]) : 0;
  set_agreement(layer);
  return "";
}

std::string Plugin::set_votes(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims& votes = dims[VoteRouting::kVotes];
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
  const Dims &pose = dims[0], &weight = dims[spec_of(op_).input("weight")];
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

std::string Plugin::set_em(int32_t inputs, capsedge_cuda_routing& layer) const {
  layer.operation = CAPSEDGE_CUDA_EM;
  layer.iterations = integer(op_, values_, "iterations");
  layer.coordinates = integer(op_, values_, "coordinate_addition");
  layer.normalize_activations = integer(op_, values_, "normalize_activations");
  layer.ones_first = integer(op_, values_, "ones_first");
  const std::vector<float>& lambdas = numbers(op_, values_, "inverse_temperatures");
  std::copy(lambdas.begin(), lambdas.end(), layer.inverse_temperatures);
  if (layer.coordinates && inputs > EMRouting::kCoordinates)
    return "input 'coordinates' and attribute 'coordinate_addition' exclude each other";
  return "";
}

std::string Plugin::set_attention(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims& parent = dims[AttentionRouting::kParent];
  const int64_t size = static_cast<int64_t>(layer.rows) * layer.columns;
  if (parent.d[1] != layer.grid_height || parent.d[2] != layer.grid_width || parent.d[4] != size)
    return "input 'parent' has shape " + text_of(parent) + ": wanted [N, " + std::to_string(layer.grid_height) + ", " +
           std::to_string(layer.grid_width) + ", M, " + std::to_string(size) + "]";
  layer.operation = CAPSEDGE_CUDA_ATTENTION;
  layer.agreement_scale = number(op_, values_, "agreement_scale");
  layer.parent_images = narrow(parent.d[0]);
  return "";
}

std::string Plugin::set_self_attention(const Dims* dims, capsedge_cuda_routing& layer) const {
  const Dims &u = dims[SelfAttentionRouting::kU], &weight = dims[SelfAttentionRouting::kWeight];
  layer.operation = CAPSEDGE_CUDA_SELF_ATTENTION;
  set_capsules(u, weight, layer);
  layer.iterations = 2;
  return "";
}

void Plugin::set_addresses(const void* const* in, void* const* out, capsedge_cuda_routing& layer) const {
  layer.pose = in[0];
  layer.out_pose = out[0];
  switch (op_) {
    case OperatorId::kDynamicRouting:
      layer.weight = in[DynamicRouting::kWeight];
      layer.log_prior = in[DynamicRouting::kLogPrior];
      layer.bias = in[DynamicRouting::kBias];
      if (inputs_ > DynamicRouting::kVoteBias) layer.vote_bias = in[DynamicRouting::kVoteBias];
      return;
    case OperatorId::kSelfAttentionRouting:
      layer.weight = in[SelfAttentionRouting::kWeight];
      layer.bias = in[SelfAttentionRouting::kBias];
      return;
    case OperatorId::kVoteRouting:
      layer.log_prior = in[VoteRouting::kLogPrior];
      layer.bias = in[VoteRouting::kBias];
      return;
    case OperatorId::kEMRouting:
      layer.weight = in[EMRouting::kWeight];
      layer.activation = in[EMRouting::kA];
      layer.beta_u = in[EMRouting::kBetaU];
      layer.beta_a = in[EMRouting::kBetaA];
      layer.out_activation = out[1];
      if (inputs_ > EMRouting::kCoordinates) layer.additions = in[EMRouting::kCoordinates];
      return;
    default:
      layer.weight = in[AttentionRouting::kWeight];
      layer.parent = in[AttentionRouting::kParent];
      layer.scale = in[AttentionRouting::kScale];
      layer.bias = in[AttentionRouting::kBias];
  }
}

}  // namespace tensorrt
}  // namespace capsedge
