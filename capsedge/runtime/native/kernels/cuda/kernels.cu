// The kernels of the operators.
#include "kernels.h"

#include "finish.h"
#include "generic.h"
#include "grouped.h"
#include "over_children.h"
#include "squash.h"
#include "tiled.h"

namespace capsedge {
namespace cuda {
namespace {

// Passes by the shape of a vote: R rows, L columns, Q parents per lane. `round` is shared memory for the votes of a
// round. kBlocks: blocks per multiprocessor, as the planner assumes, except where the registers of two parents would
// spill.
template <int R, int L, int Q>
struct Sums {
  static constexpr int kBlocks = R == 1 || Q == 1 ? 2 : 1;
  template <typename T, typename W>
  CAPSEDGE_DEVICE static void pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state,
                                   bool first_pass, float* partial, float* round) {
    sum_pass<R, L, Q, T, W>(b, l, unit, part, state, first_pass, partial, round);
  }
};
template <int R, int L, int Q>
struct Moments {
  static constexpr int kBlocks = Q == 1 ? 2 : 1;
  template <typename T, typename W>
  CAPSEDGE_DEVICE static void pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state,
                                   bool first_pass, float* partial, float*) {
    em_pass<R, L, Q, T, W>(b, l, unit, part, state, first_pass, partial);
  }
};

template <int L, int Q>
struct OverChildren {
  static constexpr int kBlocks = 2;
  template <typename T, typename W>
  CAPSEDGE_DEVICE static void pass(const Block& b, const Layer& l, int64_t unit, Part part, const float* state,
                                   bool first_pass, float* partial, float* round) {
    over_children_pass<L, Q, T, W>(b, l, unit, part, state, first_pass, partial, round);
  }
};

CAPSEDGE_DEVICE bool nothing_known(const Layer& l, int iteration) {
  return iteration == 0 && l.operation != CAPSEDGE_CUDA_ATTENTION;
}

#ifdef CAPSEDGE_EMULATE
#define CAPSEDGE_BOUNDS
#define CAPSEDGE_BLOCKS(number)
#else
#define CAPSEDGE_BOUNDS __launch_bounds__(kThreads)
#define CAPSEDGE_BLOCKS(number) __launch_bounds__(kThreads, number)
#endif

// One block per unit, all iterations; everything between them stays in shared memory. With parts, one cluster of blocks
// per unit: the first block adds the others' sums, and they copy the result.
template <typename Pass, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BLOCKS(Pass::kBlocks) whole_kernel(const Layer l) {
  const Block b;
  float* state = b.shared();
  float* partial = state + l.room;
  float* round = partial + l.room;
  const int64_t unit = b.x();
  const Part own = part_of(l, b.y());
  if (l.operation == CAPSEDGE_CUDA_ATTENTION) begin_attention<T>(b, l, unit, state);
  for (int iteration = 0; iteration < l.iterations; ++iteration) {
    Pass::template pass<T, W>(b, l, unit, own, state, nothing_known(l, iteration), partial, round);
    if (l.splits > 1) b.sync_cluster();  // all parts are there
    if (b.y() == 0) finish<T>(b, l, unit, iteration, ClusterParts{b, partial}, partial, state);
    if (l.splits == 1) continue;
    b.sync_cluster();  // the parts have been read: the next pass may write them, and after the last one blocks may end
    if (b.y() == 0 || iteration == l.iterations - 1) continue;
    const float* made = b.shared_of(state, 0);
    const int size = l.over_children ? l.parents * l.pose_elements : l.floats;  // floats of a state; a part has more
    for (int at = b.thread(); at < size; at += b.threads()) state[at] = made[at];
    b.sync();
  }
}

// One block per part of a unit's children, one pass.
template <typename Pass, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BLOCKS(Pass::kBlocks) part_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x();
  float* round = b.shared();
  float* gathered = round + l.round;  // groups take turns
  float* partial = l.partial + (unit * l.splits + b.y()) * l.room;
  Pass::template pass<T, W>(b, l, unit, part_of(l, b.y()), l.state + unit * l.room, nothing_known(l, iteration),
                            gathered, round);
  for (int at = b.thread(); at < l.floats; at += b.threads()) partial[at] = gathered[at];
}

// One block for several units and a part of their children, one pass.
template <int R, int L, int U, bool EM, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BLOCKS(2) tiled_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = static_cast<int64_t>(b.x()) * (b.threads() / l.group) * U;
  const Part own = part_of(l, b.y());
  tiled_pass<R, L, U, EM, T, W>(b, l, unit, own.first, own.last, l.state, nothing_known(l, iteration),
                                l.partial + static_cast<int64_t>(b.y()) * l.room,
                                static_cast<int64_t>(l.splits) * l.room);
}

template <typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS generic_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x(), part = unit * l.splits + b.y();
  const Part own = part_of(l, b.y());
  generic_pass<T, W>(b, l, unit, own.first, own.last, l.state + unit * l.room, nothing_known(l, iteration),
                     l.partial + part * l.room, l.scratch + part * kTile * l.parents);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS begin_kernel(const Layer l) {
  const Block b;
  begin_attention<T>(b, l, b.x(), l.state + static_cast<int64_t>(b.x()) * l.room);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS finish_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x();
  float* partial = l.partial + unit * l.splits * l.room;
  finish<T>(b, l, unit, iteration, StoredParts{partial, l.room}, partial, l.state + unit * l.room);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS squash_rows_kernel(const T* x, T* y, int64_t rows, int size, float epsilon, int group) {
  squash_rows<T>(Block(), x, y, rows, size, epsilon, group);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS squash_planes_kernel(const T* x, T* y, int64_t outer, int size, int64_t inner,
                                                     float epsilon) {
  squash_planes<T>(Block(), x, y, outer, size, inner, epsilon);
}

template <int L, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS votes_kernel(const Layer l) {
  keep_votes<L, T, W>(Block(), l);
}

template <typename Pass, typename T, typename W>
void use_pass(Kernels& kernels) {
  kernels.whole = whole_kernel<Pass, T, W>;
  kernels.pass = part_kernel<Pass, T, W>;
}

template <typename T, typename W>
Kernels typed_kernels(const Layer& layer, Shape shape, int q, bool tiled) {
  const bool em = layer.operation == CAPSEDGE_CUDA_EM, two = q == 2;
  Kernels kernels{nullptr, generic_kernel<T, W>, begin_kernel<T>, finish_kernel<T>, nullptr};
  if (shape == Shape::k1x16) kernels.votes = votes_kernel<16, T, W>;
  if (shape == Shape::k1x8) kernels.votes = votes_kernel<8, T, W>;
  if (tiled) {
    kernels.pass = shape == Shape::k1x16  ? tiled_kernel<1, 16, 2, false, T, W>
                   : shape == Shape::k1x8 ? tiled_kernel<1, 8, 2, false, T, W>
                   : em                   ? tiled_kernel<4, 4, 1, true, T, W>
                                          : tiled_kernel<4, 4, 2, false, T, W>;
    return kernels;
  }
  switch (shape) {
    case Shape::k4x4:
      if (em)
        two ? use_pass<Moments<4, 4, 2>, T, W>(kernels) : use_pass<Moments<4, 4, 1>, T, W>(kernels);
      else
        two ? use_pass<Sums<4, 4, 2>, T, W>(kernels) : use_pass<Sums<4, 4, 1>, T, W>(kernels);
      break;
    case Shape::k2x2:
      use_pass<Moments<2, 2, 1>, T, W>(kernels);
      break;
    case Shape::k1x16:
      if (layer.over_children)
        two ? use_pass<OverChildren<16, 2>, T, W>(kernels) : use_pass<OverChildren<16, 1>, T, W>(kernels);
      else
        two ? use_pass<Sums<1, 16, 2>, T, W>(kernels) : use_pass<Sums<1, 16, 1>, T, W>(kernels);
      break;
    case Shape::k1x8:
      layer.over_children ? use_pass<OverChildren<8, 1>, T, W>(kernels) : use_pass<Sums<1, 8, 1>, T, W>(kernels);
      break;
    case Shape::kGeneric:
      break;
  }
  return kernels;
}

}  // namespace

Kernels kernels_of(const Layer& layer, Shape shape, int q, bool tiled) {
  const bool int8 = layer.weight_type == CAPSEDGE_CUDA_INT8;
  if (layer.type == CAPSEDGE_CUDA_FLOAT)
    return int8 ? typed_kernels<float, int8_t>(layer, shape, q, tiled)
                : typed_kernels<float, float>(layer, shape, q, tiled);
  return int8 ? typed_kernels<Half, int8_t>(layer, shape, q, tiled) : typed_kernels<Half, Half>(layer, shape, q, tiled);
}

template <typename T>
SquashKernels<T> squash_kernels() {
  return {squash_rows_kernel<T>, squash_planes_kernel<T>};
}
template SquashKernels<float> squash_kernels<float>();
template SquashKernels<Half> squash_kernels<Half>();

}  // namespace cuda
}  // namespace capsedge
