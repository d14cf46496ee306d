#include "cuda_takes.h"

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

// Empty, or why the kernels do not take the node.
std::string reason(const char* type, const AttributeSource& source, const capsedge_kernel_tensor* inputs, size_t count) {
  const auto [spec, number] = split(type);
  if (spec == nullptr || number > kMaxInstances || !has_cuda_kernel(*spec)) return "there is no CUDA kernel for it";
  const Attributes attributes(*spec, source);
  const CheckedAttributes checked(attributes);
  std::string why = wrong_attributes(*spec, checked);
  if (!why.empty()) return why;
  if (!spec->takes(count)) return std::to_string(count) + " inputs: wanted " + spec->wanted_inputs();
  const int32_t floating = inputs[0].type;
  if (floating != CAPSEDGE_KERNEL_FLOAT && floating != CAPSEDGE_KERNEL_FLOAT16) return "its inputs are not FP32 or FP16";
  std::array<ShapeView, kMostInputs> shapes;
  for (size_t k = 0; k < count; ++k) {
    if (!fits(spec->inputs[k].type, inputs[k].type, floating))
      return std::string("input '") + spec->inputs[k].name + "' has another type than the kernels take";
    shapes[k] = {inputs[k].shape, static_cast<size_t>(std::max(inputs[k].rank, 0))};
  }
  // One multiprocessor, so that no GPU is asked: how many there are decides nothing here.
  const CudaNode node(*spec, checked, 1);
  CudaCall call;
  int64_t bytes = 0;
  const int32_t stored = floating == CAPSEDGE_KERNEL_FLOAT ? CAPSEDGE_CUDA_FLOAT : CAPSEDGE_CUDA_FLOAT16;
  why = node.prepare(shapes.data(), count, stored, call);
  return why.empty() ? node.workspace(call, bytes) : why;
}

}  // namespace

}  // namespace capsedge::ort

extern "C" int capsedge_cuda_takes(const char* type, const capsedge_kernel_attribute* attributes, int32_t attribute_count,
                                   const capsedge_kernel_tensor* inputs, int32_t input_count, char* why,
                                   size_t why_size) {
  std::string said;
  try {
    const capsedge::ListedAttributes listed(attributes, attribute_count);
    said = capsedge::ort::reason(type, listed, inputs, static_cast<size_t>(std::max(input_count, 0)));
  } catch (const std::exception& error) {
    said = error.what();
  }
  if (why && why_size) std::snprintf(why, why_size, "%s", said.c_str());
  return said.empty() ? 0 : 1;
}
