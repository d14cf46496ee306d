#include "cuda_node.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace capsedge {

using namespace places;

namespace {

const OperatorSpec& base_of(const OperatorSpec& spec) {
  return spec.quantizes ? *find_operator(spec.quantizes) : spec;
}

int64_t side_of(int64_t size) {
  const int64_t side = std::llround(std::sqrt(static_cast<double>(size)));
  return side * side == size ? side : 0;
}

// Shapes have passed InputShapes::wrong, which allows 2^31 elements; the batch is checked by `prepare`.
int32_t narrow(int64_t size) { return static_cast<int32_t>(size); }

bool goes_by_agreement(OperatorId base) {
  return base == OperatorId::kDynamicRouting || base == OperatorId::kVoteRouting;
}

int32_t operation_of(OperatorId base) {
  switch (base) {
    case OperatorId::kDynamicRouting: return CAPSEDGE_CUDA_DYNAMIC;
    case OperatorId::kVoteRouting: return CAPSEDGE_CUDA_VOTES;
    case OperatorId::kEMRouting: return CAPSEDGE_CUDA_EM;
    case OperatorId::kAttentionRouting: return CAPSEDGE_CUDA_ATTENTION;
    default: return CAPSEDGE_CUDA_SELF_ATTENTION;
  }
}

void read_agreement(const CudaAttributes& attributes, capsedge_cuda_routing& layer) {
  layer.iterations = attributes.integer("iterations");
  layer.leaky = attributes.integer("leaky");
  layer.over_children = attributes.integer("over_children");
  layer.replace = attributes.integer("replace");
  layer.normalize = attributes.integer("normalize");
  layer.elementwise = attributes.integer("elementwise");
  layer.agreement_scale = attributes.number("agreement_scale");
}

void read_em(const CudaAttributes& attributes, capsedge_cuda_routing& layer) {
  layer.iterations = attributes.integer("iterations");
  layer.coordinates = attributes.integer("coordinate_addition");
  layer.shared = attributes.integer("shared");
  layer.normalize_activations = attributes.integer("normalize_activations");
  layer.ones_first = attributes.integer("ones_first");
  layer.variance_epsilon = attributes.number("variance_epsilon");
  layer.activation_epsilon = attributes.number("activation_epsilon");
  layer.cost_epsilon = attributes.number("cost_epsilon");
  const std::vector<float> lambdas = attributes.numbers("inverse_temperatures");
  std::copy_n(lambdas.begin(), std::min<size_t>(lambdas.size(), CAPSEDGE_CUDA_MAX_ITERATIONS),
              layer.inverse_temperatures);
}

// The place of an input that a node has; `count` if it lacks it.
size_t place_of(const OperatorSpec& spec, const char* name, size_t count) {
  size_t k = 0;
  while (k < count && std::string_view(spec.inputs[k].name) != name) ++k;
  return k;
}

}  // namespace

bool has_cuda_kernel(const OperatorSpec& spec) { return base_of(spec).plugin; }

std::string wrong_attributes(const OperatorSpec& spec, const CudaAttributes& attributes) {
  if (spec.has_attribute("iterations")) {
    const int32_t iterations = attributes.integer("iterations");
    if (iterations < 1 || iterations > CAPSEDGE_CUDA_MAX_ITERATIONS)
      return "attribute 'iterations' is " + std::to_string(iterations) + ": wanted 1 to " +
             std::to_string(CAPSEDGE_CUDA_MAX_ITERATIONS);
  }
  if (spec.has_attribute("leaky") && attributes.integer("leaky") && attributes.integer("over_children"))
    return "attributes 'leaky' and 'over_children' exclude each other";
  if (spec.has_attribute("inverse_temperatures")) {
    const size_t found = attributes.numbers("inverse_temperatures").size();
    if (found != static_cast<size_t>(attributes.integer("iterations")))
      return "attribute 'inverse_temperatures' has " + std::to_string(found) + " numbers: wanted one per iteration";
  }
  for (const char* name : {"variance_epsilon", "activation_epsilon", "cost_epsilon"})
    if (spec.has_attribute(name) && !(attributes.number(name) >= 0))
      return "attribute '" + std::string(name) + "' is negative: wanted 0 or more";
  return "";
}

CudaNode::CudaNode(const OperatorSpec& spec, const CudaAttributes& attributes, int32_t multiprocessors)
    : spec_(spec), base_(id_of(base_of(spec))), input_shapes_(spec) {
  capsedge_cuda_routing& a = attributes_;
  a.operation = operation_of(base_);
  a.iterations = base_ == OperatorId::kSelfAttentionRouting ? 2 : 1;
  a.rows = a.inner = a.height = a.width = a.grid_height = a.grid_width = 1;
  a.kernel_height = a.kernel_width = a.stride_rows = a.stride_columns = 1;
  a.epsilon = attributes.number("epsilon");
  a.multiprocessors = multiprocessors;
  if (base_ == OperatorId::kSquash) axis_ = attributes.integer("axis");
  if (goes_by_agreement(base_)) read_agreement(attributes, a);
  if (base_ == OperatorId::kEMRouting) read_em(attributes, a);
  if (base_ == OperatorId::kAttentionRouting) {
    a.agreement_scale = attributes.number("agreement_scale");
    matrix_pose_ = attributes.integer("matrix_pose") != 0;
  }
  if (spec.has_attribute("strides") && !a.shared) {
    a.stride_rows = attributes.integer("strides", 0);
    a.stride_columns = attributes.integer("strides", 1);
  }
}

std::string CudaNode::prepare(const ShapeView* inputs, size_t count, int32_t type, CudaCall& call) const {
  if (!spec_.takes(count)) return std::to_string(count) + " inputs: wanted " + spec_.wanted_inputs();
  call = {};
  call.layer = attributes_;
  call.layer.type = type;
  call.layer.weight_type = spec_.quantizes ? CAPSEDGE_CUDA_INT8 : type;
  if (base_ == OperatorId::kSquash) return set_squash(inputs[0], call);
  std::string why = input_shapes_.wrong(inputs, count);
  if (why.empty() && inputs[0].sizes[0] > std::numeric_limits<int32_t>::max())
    why = "a batch of " + std::to_string(inputs[0].sizes[0]);
  if (!why.empty()) return why;
  if (input_shapes_.plugin_lacks(inputs, count))
    return "the CUDA kernels lack such inputs: run the node as its function body";
  if (base_ == OperatorId::kDynamicRouting || base_ == OperatorId::kSelfAttentionRouting)
    return set_capsules(inputs, count, call.layer), "";
  if (base_ == OperatorId::kVoteRouting) return set_votes(inputs[0], call.layer), "";
  why = set_windows(inputs, call.layer);
  if (!why.empty()) return why;
  if (base_ == OperatorId::kAttentionRouting) return check_parent(inputs[AttentionRouting::kParent], call.layer);
  if (call.layer.coordinates && place_of(spec_, "coordinates", count) < count)
    return "input 'coordinates' and attribute 'coordinate_addition' exclude each other";
  return "";
}

std::string CudaNode::set_squash(ShapeView x, CudaCall& call) const {
  const int64_t rank = static_cast<int64_t>(x.rank), axis = axis_ < 0 ? axis_ + rank : axis_;
  if (axis < 0 || axis >= rank) return "attribute 'axis' lies outside the shape " + to_text(x);
  for (int64_t k = 0; k < rank; ++k)
    (k < axis ? call.outer : k > axis ? call.inner : call.size) *= x.sizes[static_cast<size_t>(k)];
  if (call.size > std::numeric_limits<int32_t>::max()) return "poses of " + std::to_string(call.size) + " elements";
  return "";
}

// Children, parents and the weight [I, J, Pout, Pin] between them.
void CudaNode::set_capsules(const ShapeView* inputs, size_t count, capsedge_cuda_routing& layer) const {
  const ShapeView u = inputs[0], weight = inputs[spec_.input("weight")];
  layer.images = narrow(u.sizes[0]);
  layer.types = narrow(u.sizes[1]);
  layer.parents = narrow(weight.sizes[1]);
  layer.columns = narrow(weight.sizes[2]);
  layer.inner = narrow(weight.sizes[3]);
  if (base_ != OperatorId::kDynamicRouting) return;
  layer.one_weight = weight.sizes[0] < u.sizes[1];
  const size_t biases = place_of(spec_, "vote_bias", count);
  layer.vote_biases = biases < count ? narrow(inputs[biases].sizes[0]) : 0;
}

void CudaNode::set_votes(ShapeView votes, capsedge_cuda_routing& layer) const {
  layer.images = narrow(votes.sizes[0]);
  layer.types = narrow(votes.sizes[1]);
  layer.parents = narrow(votes.sizes[2]);
  layer.columns = narrow(votes.sizes[3]);
}

std::string CudaNode::set_windows(const ShapeView* inputs, capsedge_cuda_routing& layer) const {
  const ShapeView pose = inputs[0], weight = inputs[spec_.input("weight")];
  layer.images = narrow(pose.sizes[0]);
  layer.height = narrow(pose.sizes[1]);
  layer.width = narrow(pose.sizes[2]);
  layer.types = narrow(pose.sizes[3]);
  layer.kernel_height = narrow(weight.sizes[0]);
  layer.kernel_width = narrow(weight.sizes[1]);
  layer.parents = narrow(weight.sizes[3]);
  layer.inner = narrow(weight.sizes[4]);
  layer.columns = narrow(weight.sizes[5]);
  if (matrix_pose_) {
    const int64_t side = side_of(pose.sizes[4]);
    if (!side || weight.sizes[4] != side || weight.sizes[5] != side)
      return "input 'weight' has shape " + to_text(weight) + ": wanted matrices for poses of " +
             std::to_string(pose.sizes[4]) + " elements, a square number";
    layer.rows = narrow(side);
  } else if (weight.sizes[4] != pose.sizes[4]) {
    return "input 'weight' has shape " + to_text(weight) + ": wanted [.., " + std::to_string(pose.sizes[4]) + ", P]";
  }
  if (layer.shared) return "";
  if (layer.height < layer.kernel_height || layer.width < layer.kernel_width)
    return "the window is larger than the grid of input 'pose' " + to_text(pose);
  layer.grid_height = (layer.height - layer.kernel_height) / layer.stride_rows + 1;
  layer.grid_width = (layer.width - layer.kernel_width) / layer.stride_columns + 1;
  return "";
}

std::string CudaNode::check_parent(ShapeView parent, capsedge_cuda_routing& layer) const {
  const int64_t size = static_cast<int64_t>(layer.rows) * layer.columns;
  if (parent.sizes[1] != layer.grid_height || parent.sizes[2] != layer.grid_width || parent.sizes[4] != size)
    return "input 'parent' has shape " + to_text(parent) + ": wanted [N, " + std::to_string(layer.grid_height) + ", " +
           std::to_string(layer.grid_width) + ", M, " + std::to_string(size) + "]";
  layer.parent_images = narrow(parent.sizes[0]);
  return "";
}

std::string CudaNode::workspace(const CudaCall& call, int64_t& bytes) const {
  bytes = 0;
  if (base_ == OperatorId::kSquash) return "";
  bytes = capsedge_cuda_workspace(&call.layer);
  return bytes < 0 ? capsedge_cuda_describe(&call.layer) : "";
}

std::string CudaNode::launch(CudaCall call, const void* const* in, size_t count, void* const* out, CudaScratch scratch,
                             void* stream) const {
  char error[256] = "";
  capsedge_cuda_routing& l = call.layer;
  if (base_ == OperatorId::kSquash) {
    const int failed = capsedge_cuda_squash(in[0], out[0], call.outer, narrow(call.size), call.inner, l.epsilon, l.type,
                                            stream, error, sizeof error);
    return failed ? error : "";
  }
  const auto address = [&](const char* name) -> const void* {
    const size_t place = place_of(spec_, name, count);
    return place < count ? in[place] : nullptr;
  };
  l.pose = in[0];
  l.weight = address("weight");
  l.weight_scale = static_cast<const float*>(address("weight_scale"));
  l.log_prior = address("log_prior");
  l.bias = address("bias");
  l.vote_bias = address("vote_bias");
  l.activation = address("a");
  l.beta_u = address("beta_u");
  l.beta_a = address("beta_a");
  l.additions = address("coordinates");
  l.parent = address("parent");
  l.scale = address("scale");
  l.out_pose = out[0];
  l.out_activation = spec_.outputs.size() > 1 ? out[1] : nullptr;
  return capsedge_cuda_route(&l, scratch.data, scratch.bytes, stream, error, sizeof error) ? error : "";
}

}  // namespace capsedge
