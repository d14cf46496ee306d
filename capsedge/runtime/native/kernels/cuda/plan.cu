#include "plan.h"

#include <algorithm>
#include <climits>

namespace capsedge {
namespace cuda {

bool aligned(const void* address, int64_t to) { return reinterpret_cast<uintptr_t>(address) % to == 0; }

Grid whole_grid(const Plan& plan) {
  const Layer& l = plan.layer;
  return {l.units, l.splits, plan.threads, (2 * l.room + l.round) * sizeof(float), l.splits};
}

namespace {

constexpr int64_t kSharedBytes = 48 * 1024;  // what every GPU gives without asking
constexpr int kMaxSplits = 1024;
constexpr int64_t kMostKept = 65535;  // units whose votes are kept: blocks of a grid in y
constexpr int kMostMultiprocessors = 1024;  // several times those of the largest GPU
constexpr int kMaxCluster = 8;  // what every GPU with clusters runs
// Children that a group of lanes of a cluster takes one after another, before more blocks in a kernel per pass are
// worth more than the kernels saved. Estimated, not measured.
constexpr int kClusterRounds = 16;

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

// Shares the children out.
void set_parts(Plan& plan, int64_t splits) {
  Layer& l = plan.layer;
  l.part = static_cast<int32_t>((l.children + splits - 1) / splits);
  l.splits = (l.children + l.part - 1) / l.part;
}

// The most images whose votes are kept: made once and read by every pass. That they are written and read then moves no more
// bytes than the weights of all passes but one, whatever a cache holds.
int64_t images_that_keep(const Layer& l, Shape shape) {
  const bool vectors = shape == Shape::k1x16 || shape == Shape::k1x8;
  if (!vectors || !columns_first(l) || l.one_weight) return 0;
  const int64_t weight = static_cast<int64_t>(l.inner) * bytes_of(l.weight_type), vote = sizeof(float);
  return weight * (l.iterations - 1) / (vote * (l.iterations + 1));
}

// Of the votes that a block's groups of lanes take at once: those of vectors, unless they are given.
int32_t floats_of_round(const Plan& plan) {
  const Layer& l = plan.layer;
  const bool vectors = plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8;
  return vectors && l.operation != CAPSEDGE_CUDA_VOTES ? plan.threads / l.group * l.parents * l.columns : 0;
}

// Floats of a workspace, one piece behind another.
struct Pieces {
  int64_t state, partial, scratch, votes;
};

// For so many parts of all units together.
Pieces pieces_of(const Layer& l, bool whole, bool generic, int64_t parts, bool keeps) {
  Pieces p{};
  if (!whole) p = {round_up(l.units * l.room, 64), round_up(parts * l.room, 64), 0, 0};
  if (generic) p.scratch = round_up(parts * kTile * l.parents, 64);
  if (keeps) p.votes = l.units * l.children * l.parents * l.pose_elements;
  return p;
}

Pieces pieces_of(const Plan& plan) {
  const Layer& l = plan.layer;
  return pieces_of(l, plan.whole, plan.shape == Shape::kGeneric, l.units * l.splits, plan.keeps);
}

int64_t bytes_of(const Pieces& p) {
  return static_cast<int64_t>(sizeof(float)) * (p.state + p.partial + p.scratch + p.votes);
}

// Units per group: as many as the registers hold.
int units_of_group(const Layer& l) { return l.operation == CAPSEDGE_CUDA_EM ? 1 : 2; }

// Whether several units share the weights in shared memory: where there are enough units and the tile holds a child.
void plan_tiles(Plan& plan, int32_t scheme) {
  Layer& l = plan.layer;
  const bool shapes = plan.shape == Shape::k4x4 || plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8;
  // Parents' weights lie four floats further apart than they are long: in different banks.
  const int64_t stride = static_cast<int64_t>(l.inner) * l.columns + 4, child = l.parents * stride;
  if (l.operation == CAPSEDGE_CUDA_VOTES || l.over_children) return;
  if (!shapes || plan.q > 1 || l.inner % 4 || child > kTileFloats) return;
  const int together = kThreads / l.group * units_of_group(l);
  const bool chooses = scheme == CAPSEDGE_CUDA_AUTO || scheme == CAPSEDGE_CUDA_PORTABLE;
  if (scheme != CAPSEDGE_CUDA_TILED && (!chooses || l.units < together)) return;
  plan.together = together;
  plan.threads = kThreads;
  l.tile = static_cast<int32_t>(std::min<int64_t>(kTileChildren, kTileFloats / child));
  l.stride = static_cast<int32_t>(stride);
  while (4 << l.row_shift < l.inner * l.columns && 1 << l.row_shift < kWarp) ++l.row_shift;
}

// All passes of a unit in one kernel, by a cluster that takes up to `splits` parts, where the GPU has them and the
// children are not so many that more blocks are worth more. The workspace stays that of the scheme without.
void plan_cluster(Plan& plan, int32_t scheme, int64_t splits) {
  const Layer& l = plan.layer;
  const int64_t most = static_cast<int64_t>(kMaxCluster) * kClusterRounds * (plan.threads / l.group);
  const bool few = scheme == CAPSEDGE_CUDA_AUTO && splits > 1 && l.children <= most;
  if (!l.units || (scheme != CAPSEDGE_CUDA_CLUSTER && !few)) return;
  Plan cluster = plan;
  cluster.whole = true;
  cluster.layer.splits = 2;
  while (cluster.layer.splits < kMaxCluster && 2 * cluster.layer.splits <= splits) cluster.layer.splits *= 2;
  cluster.layer.part = (l.children + cluster.layer.splits - 1) / cluster.layer.splits;
  if (clusters_run(plan.kernels.whole, whole_grid(cluster))) plan = cluster;
}

Divisor divisor_of(int32_t by) {
  Divisor divisor{0, 31};
  while (int64_t{1} << (divisor.shift - 31) < by) ++divisor.shift;
  divisor.factor = static_cast<uint32_t>(((uint64_t{1} << divisor.shift) + static_cast<uint64_t>(by) - 1) / static_cast<uint64_t>(by));
  return divisor;
}

// The interface's layer with all that its shapes say.
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

// Threads of a block that takes one unit: no more groups of lanes than children.
int threads_of(const Layer& l, bool generic) {
  if (generic) return kThreads;
  int groups = kThreads / l.group;
  while (groups > 1 && groups / 2 * l.group >= kWarp && groups / 2 >= l.children) groups /= 2;
  return std::max(kWarp, groups * l.group);
}

// The fewest children that are worth a block that takes one unit.
int64_t least_of(const Plan& plan) {
  return plan.shape == Shape::kGeneric ? kTile : 4 * (plan.threads / plan.layer.group);
}

// Parts of the children where a block takes several units.
int64_t tiled_splits(const Plan& plan, int processors) {
  const Layer& l = plan.layer;
  const int64_t blocks = divide_up(l.units, plan.together);
  const int64_t splits = std::min<int64_t>(divide_up(2 * processors, std::max<int64_t>(blocks, 1)),
                                           divide_up(l.children, 2 * l.tile));
  return std::max<int64_t>(1, std::min<int64_t>(splits, kMaxSplits));
}

// Parts of the children where a block takes one unit. Few units leave most of a GPU idle: their children are shared out.
int64_t splits_of(const Plan& plan, int32_t scheme, int processors) {
  const Layer& l = plan.layer;
  if (scheme == CAPSEDGE_CUDA_SPLIT) return std::min(3, l.children);
  if (scheme == CAPSEDGE_CUDA_CLUSTER) return std::min(kMaxCluster, l.children);
  if (!l.units || l.units >= processors) return 1;
  const int64_t splits = std::min(divide_up(2 * processors, l.units), divide_up(l.children, least_of(plan)));
  return std::min<int64_t>(splits, kMaxSplits);
}

// Parts of all units together, at most, for this batch and every smaller one: what splits_of gives is at most twice the
// multiprocessors and one more for each unit.
int64_t most_parts(const Plan& plan, int32_t scheme, int64_t processors) {
  const Layer& l = plan.layer;
  if (scheme == CAPSEDGE_CUDA_SPLIT || scheme == CAPSEDGE_CUDA_CLUSTER) return l.units * splits_of(plan, scheme, 1);
  const int64_t few = std::min(l.units, processors), each = divide_up(l.children, least_of(plan));
  return std::max(l.units, std::min(few * each, 2 * processors + few));
}

// Likewise where blocks take several units.
int64_t most_tiled_parts(const Plan& plan, int64_t processors) {
  const Layer& l = plan.layer;
  const int64_t each = divide_up(l.children, 2 * l.tile), blocks = divide_up(l.units, plan.together);
  return std::max(l.units, std::min(l.units * each, plan.together * (2 * processors + blocks)));
}

// The multiprocessors that are counted on: for a GPU that is not here, as many as any has.
int processors_of(const capsedge_cuda_routing& r) {
  const int processors = r.multiprocessors > 0 ? r.multiprocessors : multiprocessors_here();
  return processors < 1 ? kMostMultiprocessors : processors;
}

// What follows from the sizes, before blocks have their work.
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
  if (r.iterations < 1 || r.iterations > CAPSEDGE_CUDA_MAX_ITERATIONS) return "iterations are 1 to 64";
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
  if (r.shared ? r.grid_height != 1 || r.grid_width != 1 || r.kernel_height != 1 || r.kernel_width != 1
               : (r.grid_height - 1) * static_cast<int64_t>(r.stride_rows) + r.kernel_height > r.height ||
                     (r.grid_width - 1) * static_cast<int64_t>(r.stride_columns) + r.kernel_width > r.width)
    return "the windows do not lie inside the grid";
  // Kernels count these in 32 bits: with a block's step beyond the last child, and the logits of eight children. A
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
  const int processors = processors_of(r);
  Plan plan = sized_plan(r, vectors_fit(r) ? shape_of(r) : Shape::kGeneric);
  const Layer& l = plan.layer;
  plan_tiles(plan, r.scheme);
  plan.kernels = kernels_of(l, plan.shape, plan.q, plan.together > 0);
  if (plan.together) {
    set_parts(plan, tiled_splits(plan, processors));
    return plan;
  }
  plan.keeps = r.images <= images_that_keep(l, plan.shape) && l.units <= kMostKept;
  plan.layer.round = plan.keeps ? 0 : floats_of_round(plan);
  const int64_t splits = splits_of(plan, r.scheme, processors);
  const bool fits = plan.shape != Shape::kGeneric && static_cast<int64_t>(whole_grid(plan).shared) <= kSharedBytes;
  plan.whole = fits && splits == 1;
  set_parts(plan, splits);
  if (fits) plan_cluster(plan, r.scheme, splits);
  return plan;
}

int64_t bytes_of(const Plan& plan) { return bytes_of(pieces_of(plan)); }

int64_t most_bytes(const capsedge_cuda_routing& r) {
  const int processors = processors_of(r);
  const auto bytes = [&](const Plan& plan, int64_t parts, bool keeps) {
    return bytes_of(pieces_of(plan.layer, false, plan.shape == Shape::kGeneric, parts, keeps));
  };
  // Addresses are not known here: those that do not fit vectors take the generic kernel.
  const Plan generic = sized_plan(r, Shape::kGeneric);
  int64_t most = bytes(generic, most_parts(generic, r.scheme, processors), false);
  Plan plan = sized_plan(r, shape_of(r));
  if (plan.shape == Shape::kGeneric) return most;
  most = std::max(most, bytes(plan, most_parts(plan, r.scheme, processors), false));
  capsedge_cuda_routing few = r;
  few.images = static_cast<int32_t>(std::min<int64_t>(r.images, images_that_keep(plan.layer, plan.shape)));
  const Plan keeping = sized_plan(few, plan.shape);
  most = std::max(most, bytes(keeping, most_parts(keeping, r.scheme, processors), true));
  plan_tiles(plan, r.scheme);
  return plan.together ? std::max(most, bytes(plan, most_tiled_parts(plan, processors), false)) : most;
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
