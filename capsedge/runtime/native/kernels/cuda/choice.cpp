// The kernels of a layer, by its types and shapes.
#include "kernels.h"

namespace capsedge {
namespace cuda {
namespace {

const char* const names[] = {
#define CAPSEDGE_NAME(name, parameters, bounds, call) #name,
    CAPSEDGE_KERNELS(CAPSEDGE_NAME)
#undef CAPSEDGE_NAME
};

// The kernels of FP32 of a pass; those of the other types follow.
struct Pass {
  Kernel whole, part;
};
#define CAPSEDGE_PASS(name) Pass{Kernel::capsedge_whole_kernel_##name##_f32_f32, Kernel::capsedge_part_kernel_##name##_f32_f32}

Pass pass_of(const Layer& l, Shape shape, bool two) {
  const bool em = l.operation == CAPSEDGE_CUDA_EM;
  switch (shape) {
    case Shape::k4x4:
      if (em) return two ? CAPSEDGE_PASS(Moments_4x4x2) : CAPSEDGE_PASS(Moments_4x4x1);
      return two ? CAPSEDGE_PASS(Sums_4x4x2) : CAPSEDGE_PASS(Sums_4x4x1);
    case Shape::k2x2:
      return CAPSEDGE_PASS(Moments_2x2x1);
    case Shape::k1x16:
      if (l.over_children) return two ? CAPSEDGE_PASS(OverChildren_1x16x2) : CAPSEDGE_PASS(OverChildren_1x16x1);
      return two ? CAPSEDGE_PASS(Sums_1x16x2) : CAPSEDGE_PASS(Sums_1x16x1);
    case Shape::k1x8:
      return l.over_children ? CAPSEDGE_PASS(OverChildren_1x8x1) : CAPSEDGE_PASS(Sums_1x8x1);
    case Shape::kGeneric:
      break;
  }
  return {Kernel::kNone, Kernel::capsedge_generic_kernel_f32_f32};
}

Kernel tiled_of(const Layer& l, Shape shape) {
  if (shape == Shape::k1x16) return Kernel::capsedge_tiled_kernel_Sums_1x16x2_f32_f32;
  if (shape == Shape::k1x8) return Kernel::capsedge_tiled_kernel_Sums_1x8x2_f32_f32;
  return l.operation == CAPSEDGE_CUDA_EM ? Kernel::capsedge_tiled_kernel_Moments_4x4x1_f32_f32
                                         : Kernel::capsedge_tiled_kernel_Sums_4x4x2_f32_f32;
}

Kernel votes_of(Shape shape) {
  if (shape == Shape::k1x16) return Kernel::capsedge_votes_kernel_16_f32_f32;
  return shape == Shape::k1x8 ? Kernel::capsedge_votes_kernel_8_f32_f32 : Kernel::kNone;
}

Kernel after(Kernel first, int number) {
  return first == Kernel::kNone ? first : static_cast<Kernel>(static_cast<int>(first) + number);
}
// The same kernel for the types of the layer's capsules and weights, or of its capsules alone.
Kernel of_types(Kernel first, const Layer& l) {
  return after(first, 2 * (l.type == CAPSEDGE_CUDA_FLOAT16) + (l.weight_type == CAPSEDGE_CUDA_INT8));
}
Kernel of_type(Kernel first, int32_t type) { return after(first, type == CAPSEDGE_CUDA_FLOAT16); }

}  // namespace

const char* name_of(Kernel kernel) { return names[static_cast<int>(kernel)]; }

Kernels kernels_of(const Layer& l, Shape shape, int q, bool tiled) {
  const Pass pass = tiled ? Pass{Kernel::kNone, tiled_of(l, shape)} : pass_of(l, shape, q == 2);
  return {{of_types(pass.whole, l)},
          {of_types(pass.part, l)},
          {of_type(Kernel::capsedge_begin_kernel_f32, l.type)},
          {of_type(Kernel::capsedge_finish_kernel_f32, l.type)},
          {of_types(votes_of(shape), l)}};
}

RowsKernel squash_rows_of(int32_t type) { return {of_type(Kernel::capsedge_squash_rows_kernel_f32, type)}; }
PlanesKernel squash_planes_of(int32_t type) { return {of_type(Kernel::capsedge_squash_planes_kernel_f32, type)}; }

}  // namespace cuda
}  // namespace capsedge
