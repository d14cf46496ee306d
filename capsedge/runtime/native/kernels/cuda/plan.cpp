#include "plan.h"

#include <algorithm>
#include <climits>
#include <cmath>

#include "estimate.h"

#define CAPSEDGE_CUDA_TEXT_(x) #x
#define CAPSEDGE_CUDA_TEXT(x) CAPSEDGE_CUDA_TEXT_(x)

namespace capsedge {
namespace cuda {

bool aligned(const void* address, int64_t to) { return reinterpret_cast<uintptr_t>(address) % to == 0; }

Grid whole_grid(const Plan& plan) {
  const Layer& l = plan.layer;
  return {l.units, l.splits, plan.threads, (2 * l.room + l.round) * sizeof(float), l.splits};
}

namespace {

constexpr int64_t kSharedBytes = 48 * 1024;  // available on every GPU without a request
constexpr int kMaxSplits = 1024;
constexpr int64_t kMostKept = 65535;  // units whose votes are kept: blocks of a grid in y
constexpr int kMostMultiprocessors = 1024;  // several times those of the largest GPU
constexpr int kMaxCluster = 8;  // runs on every GPU with clusters
constexpr int kForcedSplits = 3;  // of the scheme that always splits
constexpr int kBlocksAtOnce = 2;  // blocks per multiprocessor for which registers are planned
constexpr int kMostWaves = 3;     // number of blocks that share children: more do not shorten a pass
constexpr int64_t kMostKeptBytes = 32 << 20;  // of votes

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

Shape shape_of(const capsedge_cuda_routing& r) {
  const bool em = r.operation == CAPSEDGE_CUDA_EM;
  if (r.scheme == CAPSEDGE_CUDA_GENERIC || r.parents > 64) return Shape::kGeneric;
  if (r.operation != CAPSEDGE_CUDA_DYNAMIC && r.rows == 4 && r.columns == 4) return Shape::k4x4;
  if (em) return r.rows == 2 && r.columns == 2 && r.parents <= 32 ? Shape::k2x2 : Shape::kGeneric;
  if (r.rows == 1 && r.columns == 16) return Shape::k1x16;
  return r.rows == 1 && r.columns == 8 && r.parents <= 32 ? Shape::k1x8 : Shape::kGeneric;
}

int bytes_of(int32_t type) { return type == CAPSEDGE_CUDA_FLOAT ? 4 : type == CAPSEDGE_CUDA_FLOAT16 ? 2 : 1; }

// Reads of four elements need addresses that are multiples of their size.
bool vectors_fit(const capsedge_cuda_routing& r) {
  return aligned(r.pose, 4 * bytes_of(r.type)) && aligned(r.weight, 4 * bytes_of(r.weight_type));
}

// Bytes of a unit's votes.
int64_t vote_bytes(const Layer& l) {
  return static_cast<int64_t>(sizeof(float)) * l.children * l.parents * l.pose_elements;
}

// Number of units whose votes may be kept, that is, computed once and read by every pass: if writing and reading them
// moves fewer bytes than the weights of all passes but one.
int64_t units_that_keep(const Layer& l, Shape shape) {
  const bool vectors = shape == Shape::k1x16 || shape == Shape::k1x8;
  if (!vectors || !columns_first(l) || l.one_weight) return 0;
  const int64_t weight = static_cast<int64_t>(l.inner) * bytes_of(l.weight_type), vote = sizeof(float);
  if (weight * (l.iterations - 1) < vote * (l.iterations + 1)) return 0;
  return std::min(kMostKept, kMostKeptBytes / vote_bytes(l));
}

// Floats of the votes that a block's groups of lanes process at once: those of vectors, unless votes are given.
int32_t floats_of_round(const Plan& plan) {
  const Layer& l = plan.layer;
  const bool vectors = plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8;
  return vectors && l.operation != CAPSEDGE_CUDA_VOTES ? plan.threads / l.group * l.parents * l.columns : 0;
}

// Floats of a workspace, whose pieces are consecutive.
struct Pieces {
  int64_t state, partial, scratch, votes;
};

// The workspace for this many parts of all units together, and the votes of this many units.
Pieces pieces_of(const Layer& l, bool whole, bool generic, int64_t parts, int64_t kept) {
  Pieces p{};
  if (!whole) p = {round_up(l.units * l.room, 64), round_up(parts * l.room, 64), 0, 0};
  if (generic) p.scratch = round_up(parts * kTile * l.parents, 64);
  p.votes = kept * vote_bytes(l) / static_cast<int64_t>(sizeof(float));
  return p;
}

Pieces pieces_of(const Plan& plan) {
  const Layer& l = plan.layer;
  return pieces_of(l, plan.whole, plan.shape == Shape::kGeneric, l.units * l.splits, plan.keeps ? l.units : 0);
}

int64_t bytes_of(const Pieces& p) {
  return static_cast<int64_t>(sizeof(float)) * (p.state + p.partial + p.scratch + p.votes);
}

// Units per group, as many as fit into the registers.
int units_of_group(const Layer& l) { return l.operation == CAPSEDGE_CUDA_EM ? 1 : 2; }

// Prepares blocks of several units, which share the weights in shared memory; false if a tile cannot hold one child.
bool plan_tiles(Plan& plan) {
  Layer& l = plan.layer;
  const bool shapes = plan.shape == Shape::k4x4 || plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8;
  // Parents' weights are four floats further apart than their length, so they are in different banks.
  const int64_t stride = static_cast<int64_t>(l.inner) * l.columns + 4, child = l.parents * stride;
  if (l.operation == CAPSEDGE_CUDA_VOTES || l.over_children) return false;
  if (!shapes || plan.q > 1 || l.inner % 4 || child > kTileFloats) return false;
  plan.together = kThreads / l.group * units_of_group(l);
  plan.threads = kThreads;
  l.tile = static_cast<int32_t>(std::min<int64_t>(kTileChildren, kTileFloats / child));
  l.stride = static_cast<int32_t>(stride);
  l.row_shift = 0;
  while (4 << l.row_shift < l.inner * l.columns && 1 << l.row_shift < kWarp) ++l.row_shift;
  return true;
}

Divisor divisor_of(int32_t by) {
  Divisor divisor{0, 31};
  while (int64_t{1} << (divisor.shift - 31) < by) ++divisor.shift;
  divisor.factor = static_cast<uint32_t>(((uint64_t{1} << divisor.shift) + static_cast<uint64_t>(by) - 1) / static_cast<uint64_t>(by));
  return divisor;
}

// The interface's layer with everything that follows from its shapes.
Layer sized_layer(const capsedge_cuda_routing& r) {
  Layer l{};
  static_cast<capsedge_cuda_routing&>(l) = r;
  l.pose_size = r.rows * r.inner;
  l.pose_elements = r.rows * r.columns;
  l.positions = r.grid_height * r.grid_width;
  l.children = (r.shared ? r.height * r.width : r.kernel_height * r.kernel_width) * r.types;
  const int size = r.parents * l.pose_elements;
  l.floats = r.operation == CAPSEDGE_CUDA_EM ? 2 * size + r.parents : r.over_children ? size + 2 * r.parents : size;
  l.room = static_cast<int32_t>(round_up(l.floats, 4));
  l.units = static_cast<int64_t>(r.images) * l.positions;
  l.by_types = divisor_of(r.types);
  l.by_across = divisor_of(r.shared ? r.width : r.kernel_width);
  l.group = 1;
  while (l.group < r.parents && l.group < kWarp) l.group *= 2;
  return l;
}

// Threads of a block that processes one unit: no more groups of lanes than children.
int threads_of(const Layer& l, bool generic) {
  if (generic) return kThreads;
  int groups = kThreads / l.group;
  while (groups > 1 && groups / 2 * l.group >= kWarp && groups / 2 >= l.children) groups /= 2;
  return std::max(kWarp, groups * l.group);
}

// Blocks for each part of the children.
int64_t blocks_of(const Plan& plan) {
  return plan.together ? divide_up(plan.layer.units, plan.together) : plan.layer.units;
}

// Most parts of a unit's children: smaller parts are not worth a block.
int64_t most_splits(const Plan& plan) {
  const int64_t least = plan.together                       ? 2 * plan.layer.tile
                        : plan.shape == Shape::kGeneric ? kTile
                                                        : 4 * (plan.threads / plan.layer.group);
  return std::min<int64_t>(kMaxSplits, divide_up(plan.layer.children, least));
}

// Most parts of all units together, for this batch and every smaller one.
int64_t most_parts(const Plan& plan, int32_t scheme, int64_t processors) {
  const Layer& l = plan.layer;
  if (!plan.together && scheme == CAPSEDGE_CUDA_SPLIT) return l.units * kForcedSplits;
  if (!plan.together && scheme == CAPSEDGE_CUDA_CLUSTER) return l.units * kMaxCluster;
  const int64_t blocks = kMostWaves * kBlocksAtOnce * processors, each = most_splits(plan);
  return std::max(l.units, std::min(l.units * each, blocks * std::max(1, plan.together)));
}

// The assumed number of multiprocessors: if the GPU is not present, the largest number that any has.
int processors_of(const capsedge_cuda_routing& r) {
  const int processors = r.multiprocessors > 0 ? r.multiprocessors : multiprocessors_here();
  return processors < 1 ? kMostMultiprocessors : processors;
}

// The plan as far as it follows from the sizes, before blocks are assigned work.
Plan sized_plan(const capsedge_cuda_routing& r, Shape shape) {
  Plan plan{};
  plan.layer = sized_layer(r);
  plan.shape = shape;
  const bool generic = shape == Shape::kGeneric;
  plan.layer.parent_step = generic ? plan.layer.pose_elements : 4;
  plan.layer.four_step = generic ? 4 : 4 * r.parents;
  plan.q = (r.parents + kWarp - 1) / kWarp;
  plan.threads = threads_of(plan.layer, generic);
  return plan;
}

// Whether all passes of a unit may be one kernel, which keeps the unit in shared memory.
bool fits(const Plan& plan) {
  return plan.shape != Shape::kGeneric && !plan.together && static_cast<int64_t>(whole_grid(plan).shared) <= kSharedBytes;
}

// The plan with the work divided among its blocks.
Plan applied(Plan plan, const Way& way) {
  Layer& l = plan.layer;
  plan.keeps = way.keeps;
  plan.whole = way.whole;
  l.round = way.keeps || plan.together ? 0 : floats_of_round(plan);
  l.part = static_cast<int32_t>(divide_up(l.children, way.splits));
  // Only blocks of a cluster may be left without children.
  l.splits = static_cast<int32_t>(way.whole ? way.splits : divide_up(l.children, l.part));
  plan.kernels = kernels_of(l, plan.shape, plan.q, plan.together > 0);
  return plan;
}

double time_of(const Plan& plan, const Way& way, int64_t slots) {
  const Layer& l = plan.layer;
  const bool vectors = plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8, pair = units_of_group(l) > 1;
  const bool generic = plan.shape == Shape::kGeneric, given = l.operation == CAPSEDGE_CUDA_VOTES || way.keeps;
  Work w{blocks_of(plan) * way.splits, slots, divide_up(l.children, way.splits), 0, 0, l.iterations, 0};
  if (l.operation == CAPSEDGE_CUDA_EM) w.finish = kEmFinish;
  if (!plan.together) w.turns = divide_up(w.turns, generic ? kTile : plan.threads / l.group);
  w.turn = plan.together ? (pair ? kTiledPairTurn : kTiledTurn)
           : generic     ? kGenericTurn
           : !vectors    ? kMatrixTurn
           : given       ? kGivenTurn
                         : kVectorTurn;
  if (way.keeps) w.kept = l.units * divide_up(l.children, kKeptChildren);
  return estimate(way, w);
}

struct Choice {
  Way way;
  double time;
};

// The fastest plan with up to this many parts, with a kernel per pass or, if a unit has one part, one kernel for all
// passes.
Choice fastest(const Plan& plan, int64_t from, int64_t to, int64_t slots) {
  const Layer& l = plan.layer;
  const int64_t keeping = plan.together ? -1 : units_that_keep(l, plan.shape);
  Choice best{{false, false, from}, HUGE_VAL};
  for (int64_t splits = from; splits <= to; ++splits) {
    if (splits > from && blocks_of(plan) * splits > kMostWaves * slots) break;
    if (splits > from && splits != divide_up(l.children, divide_up(l.children, splits))) continue;  // no such number
    for (const bool keeps : {false, true}) {
      if (keeps && l.units > keeping) continue;
      Way way{keeps, false, splits};
      way.whole = splits == 1 && fits(applied(plan, way));
      const double time = time_of(plan, way, slots);
      if (time < best.time) best = {way, time};
    }
  }
  return best;
}

// The fastest cluster; all passes of a unit are one kernel there. The scheduler places clusters as a whole, so they are
// fast only if each block has a multiprocessor to itself.
Choice fastest_cluster(const Plan& plan, int64_t from, int64_t to, int64_t slots) {
  Choice best{{false, true, from}, HUGE_VAL};
  for (int64_t splits = from; splits <= to; splits *= 2) {
    if (splits > from && 2 * blocks_of(plan) * splits > slots) break;
    Choice choice = fastest(plan, splits, splits, slots);
    choice.way.whole = true;
    choice.way.splits = splits;
    choice.time = time_of(plan, choice.way, slots);
    if (choice.time < best.time && fits(applied(plan, choice.way))) best = choice;
  }
  return best;
}

bool runs_as_cluster(const Plan& plan) {
  return plan.layer.units && fits(plan) && clusters_run(plan.kernels.whole.kernel, whole_grid(plan));
}

}  // namespace

const char* check_layer(const capsedge_cuda_routing& r) {
  const bool em = r.operation == CAPSEDGE_CUDA_EM;
  const bool self_attention = r.operation == CAPSEDGE_CUDA_SELF_ATTENTION;
  const bool votes = r.operation == CAPSEDGE_CUDA_VOTES, agreement = votes || r.operation == CAPSEDGE_CUDA_DYNAMIC;
  if (r.operation < CAPSEDGE_CUDA_DYNAMIC || r.operation > CAPSEDGE_CUDA_SELF_ATTENTION) return "unknown operation";
  if (r.type != CAPSEDGE_CUDA_FLOAT && r.type != CAPSEDGE_CUDA_FLOAT16) return "inputs are float or float16";
  if (r.weight_type != r.type && r.weight_type != CAPSEDGE_CUDA_INT8)
    return "the weight has the type of the other inputs, or int8";
  if ((r.weight_type == CAPSEDGE_CUDA_INT8) != (r.weight_scale != nullptr) && r.pose)
    return "an int8 weight has a scale, and no other has";
  if (r.images < 0 || r.height < 1 || r.width < 1 || r.types < 1 || r.parents < 1 || r.rows < 1 || r.inner < 1 ||
      r.columns < 1 || r.grid_height < 1 || r.grid_width < 1 || r.kernel_height < 1 || r.kernel_width < 1 ||
      r.stride_rows < 1 || r.stride_columns < 1)
    return "a dimension is below 1";
  if (r.iterations < 1 || r.iterations > CAPSEDGE_CUDA_MAX_ITERATIONS)
    return "iterations are 1 to " CAPSEDGE_CUDA_TEXT(CAPSEDGE_CUDA_MAX_ITERATIONS);
  if (r.operation == CAPSEDGE_CUDA_ATTENTION && r.iterations != 1) return "attention routing is one pass";
  if (self_attention && r.iterations != 2) return "self-attention routing is two passes";
  if (r.operation == CAPSEDGE_CUDA_ATTENTION && r.parent_images != r.images && r.parent_images != 1)
    return "the parents' batch is neither 1 nor that of the poses";
  if ((agreement || self_attention) && r.rows != 1) return "dynamic and self-attention routing have vectors, one row";
  if (!agreement && (r.leaky || r.over_children || r.replace || r.normalize || r.elementwise))
    return "only dynamic routing can be leaky, go over the children, replace, normalize or squash elements";
  if (r.leaky && r.over_children) return "leaky routing is over the parents";
  if (r.operation != CAPSEDGE_CUDA_DYNAMIC && (r.one_weight || r.vote_biases))
    return "one weight for all and a bias of votes belong to dynamic routing";
  if (r.vote_biases != 0 && r.vote_biases != 1 && r.vote_biases != r.types)
    return "a bias of votes is one for all children or one for each";
  if (votes && (r.inner != 1 || r.weight_type != r.type)) return "given votes have no weight";
  if (!em && (r.coordinates || r.shared)) return "coordinates and shared weights belong to EM routing";
  if (!em && (r.additions || r.normalize_activations || r.ones_first))
    return "additions, normalized activations and responsibilities of one belong to EM routing";
  if (r.coordinates && r.additions) return "coordinates and additions exclude each other";
  if (r.coordinates && r.rows < 2) return "coordinates need poses of two rows";
  if (!(r.epsilon > 0)) return "epsilon is not positive";
  if (!em && (r.variance_epsilon || r.activation_epsilon || r.cost_epsilon))
    return "epsilons of the variance, the activation and the cost belong to EM routing";
  if (!(r.variance_epsilon >= 0 && r.activation_epsilon >= 0 && r.cost_epsilon >= 0))
    return "an epsilon of the variance, the activation or the cost is negative";
  if (r.shared ? r.grid_height != 1 || r.grid_width != 1 || r.kernel_height != 1 || r.kernel_width != 1
               : (r.grid_height - 1) * static_cast<int64_t>(r.stride_rows) + r.kernel_height > r.height ||
                     (r.grid_width - 1) * static_cast<int64_t>(r.stride_columns) + r.kernel_width > r.width)
    return "the windows do not lie inside the grid";
  // Kernels count these in 32 bits, including a block's step beyond the last child and the logits of eight children. A
  // double holds the product of three 32-bit numbers.
  const auto product = [](double a, double b, double c) { return a * b * c; };
  if (product(r.parents, r.rows, r.columns) > INT_MAX / (2 * kTile) ||
      product(r.inner, std::max(r.rows, r.columns), 1) > INT_MAX ||
      product(r.height, r.width, r.types) > INT_MAX / 2 ||
      product(r.kernel_height, r.kernel_width, r.types) > INT_MAX / 2 ||
      product(r.images, r.grid_height, r.grid_width) > INT_MAX)
    return "it is too large: at most 2^30 capsules per image, 2^31 positions, 2^27 numbers for the parents of an image";
  return nullptr;
}

Plan make_plan(const capsedge_cuda_routing& r) {
  const int64_t slots = static_cast<int64_t>(kBlocksAtOnce) * processors_of(r);
  const Plan unit = sized_plan(r, vectors_fit(r) ? shape_of(r) : Shape::kGeneric);
  const int children = unit.layer.children;
  if (r.scheme == CAPSEDGE_CUDA_SPLIT || r.scheme == CAPSEDGE_CUDA_CLUSTER) {
    const bool split = r.scheme == CAPSEDGE_CUDA_SPLIT;
    const int splits = std::min(split ? kForcedSplits : kMaxCluster, children), blocks = splits < 4 ? 2 : splits < 8 ? 4 : 8;
    const Plan cluster = applied(unit, fastest_cluster(unit, blocks, blocks, slots).way);
    if (!split && runs_as_cluster(cluster)) return cluster;
    return applied(unit, fastest(unit, splits, splits, slots).way);
  }
  const Choice single = fastest(unit, 1, most_splits(unit), slots);
  Plan tiles = unit;
  const bool tiled = r.scheme != CAPSEDGE_CUDA_GENERIC && plan_tiles(tiles);
  const Choice shared = tiled ? fastest(tiles, 1, most_splits(tiles), slots) : Choice{{}, HUGE_VAL};
  if (tiled && r.scheme == CAPSEDGE_CUDA_TILED) return applied(tiles, shared.way);
  if (r.scheme == CAPSEDGE_CUDA_AUTO) {
    const Choice among = fastest_cluster(unit, 2, std::min<int64_t>(kMaxCluster, most_splits(unit)), slots);
    const Plan cluster = applied(unit, among.way);
    const bool room = 2 * blocks_of(unit) * among.way.splits <= slots;
    if (room && among.time < std::min(single.time, shared.time) && runs_as_cluster(cluster)) return cluster;
  }
  return shared.time < single.time ? applied(tiles, shared.way) : applied(unit, single.way);
}

int64_t bytes_of(const Plan& plan) { return bytes_of(pieces_of(plan)); }

int64_t most_bytes(const capsedge_cuda_routing& r) {
  const int64_t processors = processors_of(r);
  const auto bytes = [&](const Plan& plan, int64_t kept) {
    const int64_t parts = most_parts(plan, r.scheme, processors);
    return bytes_of(pieces_of(plan.layer, false, plan.shape == Shape::kGeneric, parts, kept));
  };
  // Addresses are not known here; layers whose addresses do not fit vectors use the generic kernel.
  const int64_t generic = bytes(sized_plan(r, Shape::kGeneric), 0);
  Plan plan = sized_plan(r, shape_of(r));
  if (plan.shape == Shape::kGeneric) return generic;
  const int64_t single = bytes(plan, std::min(plan.layer.units, units_that_keep(plan.layer, plan.shape)));
  return std::max({generic, single, plan_tiles(plan) ? bytes(plan, 0) : 0});
}

void place(Plan& plan, void* workspace) {
  Layer& l = plan.layer;
  const Pieces p = pieces_of(plan);
  l.state = static_cast<float*>(workspace);
  l.partial = l.state + p.state;
  l.scratch = l.partial + p.partial;
  l.votes = plan.keeps ? l.scratch + p.scratch : nullptr;
}

}  // namespace cuda
}  // namespace capsedge
