// The kernels of the operators. nvcc and NVRTC make the files that device_code.cpp loads; compiled for the emulation, the
// object has a table of them instead.
#include "kernels.h"
#ifdef CAPSEDGE_EMULATE
#include "table.h"
#endif

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

template <int R, int L, int Q>
struct OverChildren {
  static_assert(R == 1, "of vectors");
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

template <typename Pass>
constexpr bool kMoments = false;
template <int R, int L, int Q>
constexpr bool kMoments<Moments<R, L, Q>> = true;

// One block per unit, all iterations; everything between them stays in shared memory. With parts, one cluster of blocks
// per unit: the first block adds the others' sums, and they copy the result.
template <typename Pass, typename T, typename W>
CAPSEDGE_DEVICE void whole(const Layer& l) {
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
CAPSEDGE_DEVICE void part(const Layer& l, int iteration) {
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
CAPSEDGE_DEVICE void tiled(const Layer& l, int iteration) {
  const Block b;
  const int64_t unit = static_cast<int64_t>(b.x()) * (b.threads() / l.group) * U;
  const Part own = part_of(l, b.y());
  tiled_pass<R, L, U, EM, T, W>(b, l, unit, own.first, own.last, l.state, nothing_known(l, iteration),
                                l.partial + static_cast<int64_t>(b.y()) * l.room,
                                static_cast<int64_t>(l.splits) * l.room);
}

template <typename T, typename W>
CAPSEDGE_DEVICE void generic(const Layer& l, int iteration) {
  const Block b;
  const int64_t unit = b.x(), part = unit * l.splits + b.y();
  const Part own = part_of(l, b.y());
  generic_pass<T, W>(b, l, unit, own.first, own.last, l.state + unit * l.room, nothing_known(l, iteration),
                     l.partial + part * l.room, l.scratch + part * kTile * l.parents);
}

template <typename T>
CAPSEDGE_DEVICE void begin(const Layer& l) {
  const Block b;
  begin_attention<T>(b, l, b.x(), l.state + static_cast<int64_t>(b.x()) * l.room);
}

template <typename T>
CAPSEDGE_DEVICE void finish_unit(const Layer& l, int iteration) {
  const Block b;
  const int64_t unit = b.x();
  float* partial = l.partial + unit * l.splits * l.room;
  finish<T>(b, l, unit, iteration, StoredParts{partial, l.room}, partial, l.state + unit * l.room);
}

}  // namespace

#ifdef CAPSEDGE_EMULATE
#define CAPSEDGE_KERNEL static void
#define CAPSEDGE_BOUNDS
#define CAPSEDGE_BLOCKS(number)
#else
#define CAPSEDGE_KERNEL extern "C" __global__ void
#define CAPSEDGE_BOUNDS __launch_bounds__(kThreads)
#define CAPSEDGE_BLOCKS(number) __launch_bounds__(kThreads, number)
#endif

using f32 = float;
using f16 = Half;
using i8 = int8_t;
#define CAPSEDGE_DEFINE(name, parameters, bounds, call) CAPSEDGE_KERNEL bounds name parameters { call; }
CAPSEDGE_KERNELS(CAPSEDGE_DEFINE)

#ifdef CAPSEDGE_EMULATE
#define CAPSEDGE_ENTRY(name, parameters, bounds, call) emulated<name>,
const EmulatedKernel kernel_table[] = {CAPSEDGE_KERNELS(CAPSEDGE_ENTRY)};
#endif

}  // namespace cuda
}  // namespace capsedge
