// The estimated time of a plan, so that the planner can choose. Microseconds on an H100 in FP32: 423 plans for 9 layers
// at 8 batch sizes were timed, and these figures were fitted to them. It only matters which of two plans is faster, and
// that depends little on the GPU: on what is idle, and how often it waits.
#pragma once

#include <cmath>
#include <cstdint>

namespace capsedge {
namespace cuda {

struct Way {
  bool keeps;      // votes of the first pass for the others
  bool whole;      // one kernel for all passes; with several parts, by clusters
  int64_t splits;  // parts of the children of a unit
};

// The inputs of the estimate.
struct Work {
  int64_t blocks;  // at once or one after another, in each pass
  int64_t slots;   // blocks that the GPU runs at once
  int64_t turns;   // children that a group of lanes processes one after another
  double turn;     // microseconds
  double finish;   // microseconds between passes, in addition to the launch
  int passes;
  int64_t kept;    // blocks of the kernel that computes kept votes; 0 without
};

constexpr double kTiledTurn = 1.1, kTiledPairTurn = 1.5;  // one unit or two for each group of lanes
constexpr double kMatrixTurn = 1.6, kVectorTurn = 5.2, kGivenTurn = 1.2, kGenericTurn = 20.0;  // a block for each unit
constexpr double kBegin = 2.75;      // of a block, before its first child and after its last
constexpr double kLaunch = 3.0, kPart = 0.15;  // between passes: a kernel, and each part that it adds
constexpr double kEmFinish = 5.0;    // of EM routing, which finishes variances and activations
constexpr double kClusterSync = 8.0; // between the passes of a cluster
constexpr double kKeptWave = 6.0;    // of the kernel that makes votes, whose blocks are small:
constexpr int kKeptAtOnce = 4;       // this many for one of the others
constexpr double kHalfFull = 0.85;   // blocks run faster if each has a multiprocessor to itself
constexpr double kSpill = 0.03;      // of a wave: this few extra blocks run among the others

// How many times the blocks fill the GPU; the last time may be partial.
inline double waves(const Work& w) {
  if (2 * w.blocks <= w.slots) return kHalfFull;
  const double full = std::ceil(static_cast<double>(w.blocks) / static_cast<double>(w.slots) - kSpill);
  return full > 1 ? full : 1;
}

inline double estimate(const Way& way, const Work& w) {
  double pass = waves(w) * (static_cast<double>(w.turns) * w.turn + kBegin);
  if (!way.whole) pass += kLaunch + w.finish + static_cast<double>(way.splits) * kPart;
  else if (way.splits > 1) pass += kClusterSync;
  const double kept = static_cast<double>(w.kept) / static_cast<double>(kKeptAtOnce * w.slots);
  return w.passes * pass + (w.kept ? kKeptWave * (kept > 1 ? kept : 1) : 0);
}

}  // namespace cuda
}  // namespace capsedge
