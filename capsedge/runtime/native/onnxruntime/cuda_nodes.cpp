#include "cuda_nodes.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "checked_attributes.h"
#include "instances.h"
#include "operators/listed_attributes.h"

namespace capsedge::ort {

namespace {

bool fits(char letter, int32_t found, int32_t floating) {
  switch (letter) {
    case 'T': return found == floating;
    case 'f': return found == CAPSEDGE_KERNEL_FLOAT;
    case 'b': return found == CAPSEDGE_KERNEL_INT8;
    default: return false;
  }
}

// What `use` says of a node that is right and of its shapes; or what is wrong with it.
template <typename Use>
std::string with_node(const capsedge_cuda_node& listed, int32_t multiprocessors, Use&& use) {
  const auto [spec, number] = split(listed.type);
  if (spec == nullptr || number > kMaxInstances || !has_cuda_kernel(*spec)) return "there is no CUDA kernel for it";
  const ListedAttributes source(listed.attributes, listed.attribute_count);
  const Attributes attributes(*spec, source);
  const CheckedAttributes checked(attributes);
  std::string why = wrong_attributes(*spec, checked);
  if (!why.empty()) return why;
  const size_t count = static_cast<size_t>(std::max(listed.input_count, 0));
  if (!spec->takes(count)) return std::to_string(count) + " inputs: wanted " + spec->wanted_inputs();
  const int32_t floating = listed.inputs[0].type;
  if (floating != CAPSEDGE_KERNEL_FLOAT && floating != CAPSEDGE_KERNEL_FLOAT16) return "its inputs are not FP32 or FP16";
  std::array<ShapeView, kMostInputs> shapes;
  for (size_t k = 0; k < count; ++k) {
    const capsedge_kernel_tensor& input = listed.inputs[k];
    if (!fits(spec->inputs[k].type, input.type, floating))
      return std::string("input '") + spec->inputs[k].name + "' has another type than the kernels take";
    shapes[k] = {input.shape, static_cast<size_t>(std::max(input.rank, 0))};
  }
  const CudaNode node(*spec, checked, multiprocessors);
  CudaCall call;
  const int32_t stored = floating == CAPSEDGE_KERNEL_FLOAT ? CAPSEDGE_CUDA_FLOAT : CAPSEDGE_CUDA_FLOAT16;
  why = node.prepare(shapes.data(), count, stored, call);
  return why.empty() ? use(node, call) : why;
}

// Whether `work` has nothing to say; its answer, or the reason of its exception, is in `why`.
template <typename Work>
bool says_nothing(char* why, size_t why_size, Work&& work) {
  std::string said;
  try {
    said = work();
  } catch (const std::exception& error) {
    said = error.what();
  }
  if (why && why_size) std::snprintf(why, why_size, "%s", said.c_str());
  return said.empty();
}

bool find_scratch(const capsedge_cuda_node& listed, int32_t multiprocessors, int64_t& bytes, char* why, size_t why_size) {
  return says_nothing(why, why_size, [&] {
    return with_node(listed, multiprocessors,
                     [&](const CudaNode& node, const CudaCall& call) { return node.workspace(call, bytes); });
  });
}

}  // namespace

}  // namespace capsedge::ort

using namespace capsedge::ort;

extern "C" int capsedge_cuda_takes(const capsedge_cuda_node* node, char* why, size_t why_size) {
  int64_t bytes = 0;
  // One multiprocessor, so that no GPU is asked: how many there are decides nothing here.
  return find_scratch(*node, 1, bytes, why, why_size) ? 0 : 1;
}

extern "C" int64_t capsedge_cuda_scratch(const capsedge_cuda_node* node, char* why, size_t why_size) {
  int64_t bytes = 0;
  return find_scratch(*node, 0, bytes, why, why_size) ? bytes : -1;
}

extern "C" int capsedge_cuda_run(const capsedge_cuda_node* node, const void* const* in, void* const* out, void* scratch,
                                 int64_t scratch_bytes, void* stream, char* why, size_t why_size) {
  return says_nothing(why, why_size, [&] {
    return with_node(*node, 0, [&](const capsedge::CudaNode& made, const capsedge::CudaCall& call) {
      return made.launch(call, in, static_cast<size_t>(node->input_count), out, {scratch, scratch_bytes}, stream);
    });
  }) ? 0 : 1;
}
