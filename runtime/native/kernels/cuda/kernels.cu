// The kernels of the four operators, and the choice among them.
#include "device.h"
#ifdef CAPSEDGE_EMULATE
#include "emulate.h"
#endif

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>

#include "finish.h"
#include "generic.h"
#include "grouped.h"
#include "layer.h"
#include "squash.h"
#include "tiled.h"

namespace capsedge {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSharedBytes = 48 * 1024;  // what every GPU gives without asking
constexpr int kMaxSplits = 1024;
constexpr int kMostMultiprocessors = 1024;  // several times those of the largest GPU
constexpr int kMaxCluster = 8;  // what every GPU with clusters runs
// Children that a group of lanes of a cluster takes one after another, before more blocks in a kernel a pass are
// worth more than the kernels saved. Reckoned, not measured.
constexpr int kClusterRounds = 16;

// Passes by the shape of a vote: rows R, columns L, Q parents a lane.
template <int R, int L, int Q>
struct Sums {
  template <typename T, typename W>
  CAPSEDGE_DEVICE static void pass(const Block& b, const Layer& l, int64_t unit, int first, int last,
                                   const float* state, bool first_pass, float* partial) {
    sum_pass<R, L, Q, T, W>(b, l, unit, first, last, state, first_pass, partial);
  }
};
template <int R, int L, int Q>
struct Moments {
  template <typename T, typename W>
  CAPSEDGE_DEVICE static void pass(const Block& b, const Layer& l, int64_t unit, int first, int last,
                                   const float* state, bool first_pass, float* partial) {
    em_pass<R, L, Q, T, W>(b, l, unit, first, last, state, first_pass, partial);
  }
};

CAPSEDGE_DEVICE bool nothing_known(const Layer& l, int iteration) {
  return iteration == 0 && l.operation != CAPSEDGE_CUDA_ATTENTION;
}

#ifdef CAPSEDGE_EMULATE
#define CAPSEDGE_BOUNDS
#else
#define CAPSEDGE_BOUNDS __launch_bounds__(kThreads)
#endif

// A block a unit, all iterations; everything between them stays in shared memory. With parts, a cluster of blocks a
// unit: the first adds what the others have gathered, and they copy what it makes of that.
template <typename Pass, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS whole_kernel(const Layer l) {
  const Block b;
  float* state = b.shared();
  float* partial = state + l.floats;
  const int64_t unit = b.x();
  const Part own = part_of(l, b.y());
  if (l.operation == CAPSEDGE_CUDA_ATTENTION) begin_attention<T>(b, l, unit, state);
  for (int iteration = 0; iteration < l.iterations; ++iteration) {
    Pass::template pass<T, W>(b, l, unit, own.first, own.last, state, nothing_known(l, iteration), partial);
    if (l.splits > 1) b.sync_cluster();  // all parts are there
    if (b.y() == 0) finish<T>(b, l, unit, iteration, ClusterParts{b, partial}, partial, state);
    if (l.splits == 1) continue;
    b.sync_cluster();  // the parts have been read: the next pass may write them, and after the last one blocks may end
    if (b.y() == 0 || iteration == l.iterations - 1) continue;
    const float* made = b.shared_of(state, 0);
    for (int at = b.thread(); at < l.floats; at += b.threads()) state[at] = made[at];
    b.sync();
  }
}

// A block a part of a unit's children, one pass.
template <typename Pass, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS part_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x();
  const Part own = part_of(l, b.y());
  Pass::template pass<T, W>(b, l, unit, own.first, own.last, l.state + unit * l.floats, nothing_known(l, iteration),
                            l.partial + (unit * l.splits + b.y()) * l.floats);
}

// A block several units and a part of their children, one pass.
template <int R, int L, int U, bool EM, typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS tiled_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = static_cast<int64_t>(b.x()) * (b.threads() / l.group) * U;
  const Part own = part_of(l, b.y());
  tiled_pass<R, L, U, EM, T, W>(b, l, unit, own.first, own.last, l.state, nothing_known(l, iteration),
                                l.partial + static_cast<int64_t>(b.y()) * l.floats,
                                static_cast<int64_t>(l.splits) * l.floats);
}

template <typename T, typename W>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS generic_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x(), part = unit * l.splits + b.y();
  const Part own = part_of(l, b.y());
  generic_pass<T, W>(b, l, unit, own.first, own.last, l.state + unit * l.floats, nothing_known(l, iteration),
                     l.partial + part * l.floats, l.scratch + part * kTile * l.parents);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS begin_kernel(const Layer l) {
  const Block b;
  begin_attention<T>(b, l, b.x(), l.state + static_cast<int64_t>(b.x()) * l.floats);
}

template <typename T>
CAPSEDGE_KERNEL CAPSEDGE_BOUNDS finish_kernel(const Layer l, int iteration) {
  const Block b;
  const int64_t unit = b.x();
  float* partial = l.partial + unit * l.splits * l.floats;
  finish<T>(b, l, unit, iteration, StoredParts{partial, l.floats}, partial, l.state + unit * l.floats);
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

struct Grid {
  int64_t x;
  int y, threads;
  size_t shared;
  int cluster = 1;  // blocks in y that run at once and see each other's shared memory
};

using WholeKernel = void (*)(Layer);
using PassKernel = void (*)(Layer, int);  // and the iteration

#ifdef CAPSEDGE_EMULATE
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Grid& grid, void*, const Arguments&... arguments) {
  Emulator::instance().run(static_cast<int>(grid.x), grid.y, grid.cluster, grid.threads, grid.shared,
                           [&] { kernel(arguments...); });
  return nullptr;
}
int emulated_multiprocessors = 4;
int multiprocessors_here() { return emulated_multiprocessors; }
bool clusters_run(WholeKernel, const Grid&) { return true; }
#else
cudaLaunchConfig_t configuration(const Grid& grid, void* stream, cudaLaunchAttribute* cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim.x = cluster->val.clusterDim.z = 1;
  cluster->val.clusterDim.y = static_cast<unsigned>(grid.cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = cluster;
  config.numAttrs = grid.cluster > 1;
  return config;
}
template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Grid& grid, void* stream, const Arguments&... arguments) {
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = configuration(grid, stream, &cluster);
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();  // it is told here, and is no later call's
  return cudaGetErrorString(status);
}
int multiprocessors_here() {
  int device = 0, count = 0, driver = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess)
    return count;
  cudaGetLastError();  // it is told here, and is no later call's
  const bool old = status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return old ? CAPSEDGE_CUDA_OLD_DRIVER : 0;
}

// Whether the GPU runs such clusters. Code that the driver made of PTX for older ones has none, whatever the GPU.
bool ask_for_clusters(int device, WholeKernel kernel, const Grid& grid) {
  int known = 0, active = 0;
  cudaFuncAttributes made{};
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = configuration(grid, nullptr, &cluster);
  return cudaDeviceGetAttribute(&known, cudaDevAttrClusterLaunch, device) == cudaSuccess && known &&
         cudaFuncGetAttributes(&made, kernel) == cudaSuccess && made.ptxVersion >= 90 &&
         cudaOccupancyMaxActiveClusters(&active, kernel, &config) == cudaSuccess && active > 0;
}

// The same of the current GPU, asked once for each kernel and grid.
bool clusters_run(WholeKernel kernel, const Grid& grid) {
  static std::mutex mutex;
  static std::map<std::tuple<int, WholeKernel, int, int, size_t>, bool> answers;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [answer, asked] = answers.try_emplace({device, kernel, grid.cluster, grid.threads, grid.shared}, false);
  if (asked) {
    answer->second = ask_for_clusters(device, kernel, grid);
    cudaGetLastError();  // a refused question is an answer
  }
  return answer->second;
}
#endif

enum class Shape { kGeneric, k4x4, k2x2, k1x16, k1x8 };

struct Kernels {
  WholeKernel whole;  // of shapes with kernels of their own, not tiled
  PassKernel pass;
  WholeKernel begin;  // attention
  PassKernel finish;
};

struct Plan {
  Layer layer;
  Shape shape;
  Kernels kernels;
  int q;           // parents of a lane
  bool whole;      // one kernel for all iterations; with several parts, by clusters
  int together;    // tiled: units of a block; else 0
  int threads;
  int64_t bytes;   // of workspace
};

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

Shape shape_of(const capsedge_cuda_routing& r) {
  const bool em = r.operation == CAPSEDGE_CUDA_EM;
  if (r.scheme == CAPSEDGE_CUDA_GENERIC || r.parents > 64) return Shape::kGeneric;
  if (r.operation != CAPSEDGE_CUDA_DYNAMIC && r.rows == 4 && r.columns == 4) return Shape::k4x4;
  if (em) return r.rows == 2 && r.columns == 2 && r.parents <= 32 ? Shape::k2x2 : Shape::kGeneric;
  if (r.rows == 1 && r.columns == 16) return Shape::k1x16;
  return r.rows == 1 && r.columns == 8 && r.parents <= 32 ? Shape::k1x8 : Shape::kGeneric;
}

bool aligned(const void* address, int64_t to) { return reinterpret_cast<uintptr_t>(address) % to == 0; }

int bytes_of(int32_t type) { return type == CAPSEDGE_CUDA_FLOAT ? 4 : type == CAPSEDGE_CUDA_FLOAT16 ? 2 : 1; }

// Reads of four elements want addresses that divide by their size.
bool vectors_fit(const capsedge_cuda_routing& r) {
  return aligned(r.pose, 4 * bytes_of(r.type)) && aligned(r.weight, 4 * bytes_of(r.weight_type));
}

const char* amiss(const capsedge_cuda_routing& r) {
  const bool em = r.operation == CAPSEDGE_CUDA_EM;
  if (r.operation < CAPSEDGE_CUDA_DYNAMIC || r.operation > CAPSEDGE_CUDA_ATTENTION) return "unknown operation";
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
  if (r.operation == CAPSEDGE_CUDA_ATTENTION && r.parent_images != r.images && r.parent_images != 1)
    return "the parents' batch is neither 1 nor that of the poses";
  if (r.operation == CAPSEDGE_CUDA_DYNAMIC && r.rows != 1) return "dynamic routing has vectors, one row";
  if (r.operation != CAPSEDGE_CUDA_DYNAMIC && r.leaky) return "only dynamic routing can be leaky";
  if (!em && (r.coordinates || r.shared)) return "coordinates and shared weights belong to EM routing";
  if (r.coordinates && r.rows < 2) return "coordinates need poses of two rows";
  if (!(r.epsilon > 0)) return "epsilon is not positive";
  if (r.shared ? r.grid_height != 1 || r.grid_width != 1 || r.kernel_height != 1 || r.kernel_width != 1
               : (r.grid_height - 1) * static_cast<int64_t>(r.stride_rows) + r.kernel_height > r.height ||
                     (r.grid_width - 1) * static_cast<int64_t>(r.stride_columns) + r.kernel_width > r.width)
    return "the windows do not lie inside the grid";
  // Kernels count these in 32 bits: with a block's step beyond the last child, and eight children's logits. A double
  // holds what three numbers of 32 bits make.
  const auto product = [](double a, double b, double c) { return a * b * c; };
  if (product(r.parents, r.rows, r.columns) > INT_MAX / (2 * kTile) ||
      product(r.inner, std::max(r.rows, r.columns), 1) > INT_MAX ||
      product(r.height, r.width, r.types) > INT_MAX / 2 ||
      product(r.kernel_height, r.kernel_width, r.types) > INT_MAX / 2 ||
      product(r.images, r.grid_height, r.grid_width) > INT_MAX)
    return "it is too large: at most 2^30 capsules of an image, 2^31 positions, 2^27 numbers of an image's parents";
  return nullptr;
}

// Shares the children out and counts the workspace.
void set_parts(Plan& plan, int64_t splits) {
  Layer& l = plan.layer;
  l.part = static_cast<int32_t>((l.children + splits - 1) / splits);
  l.splits = (l.children + l.part - 1) / l.part;
  if (plan.whole) return;
  const bool generic = plan.shape == Shape::kGeneric;
  const int64_t state = round_up(l.units * l.floats, 64), partial = round_up(l.units * l.splits * l.floats, 64);
  plan.bytes = static_cast<int64_t>(sizeof(float)) *
               (state + partial + (generic ? l.units * l.splits * kTile * l.parents : 0));
}

// Units of a group: as many as the registers hold.
int units_of_group(const Layer& l) { return l.operation == CAPSEDGE_CUDA_EM ? 1 : 2; }

// Whether several units share the weights in shared memory: where there are units enough, and the tile holds a child.
void plan_tiles(Plan& plan, int32_t scheme) {
  Layer& l = plan.layer;
  const bool shapes = plan.shape == Shape::k4x4 || plan.shape == Shape::k1x16 || plan.shape == Shape::k1x8;
  // Parents' weights lie four floats further apart than they are long: in different banks.
  const int64_t stride = static_cast<int64_t>(l.inner) * l.columns + 4, child = l.parents * stride;
  if (!shapes || plan.q > 1 || l.inner % 4 || child > kTileFloats) return;
  const int together = kThreads / l.group * units_of_group(l);
  const bool chooses = scheme == CAPSEDGE_CUDA_AUTO || scheme == CAPSEDGE_CUDA_PORTABLE;
  if (scheme != CAPSEDGE_CUDA_TILED && (!chooses || l.units < together)) return;
  plan.together = together;
  plan.threads = kThreads;
  l.tile = static_cast<int32_t>(std::min<int64_t>(kTileChildren, kTileFloats / child));
  l.stride = static_cast<int32_t>(stride);
}

template <typename Pass, typename T, typename W>
void use_pass(Kernels& kernels) {
  kernels.whole = whole_kernel<Pass, T, W>;
  kernels.pass = part_kernel<Pass, T, W>;
}

template <typename T, typename W>
Kernels kernels_of(const Plan& plan) {
  const bool em = plan.layer.operation == CAPSEDGE_CUDA_EM, two = plan.q == 2;
  Kernels kernels{nullptr, generic_kernel<T, W>, begin_kernel<T>, finish_kernel<T>};
  if (plan.together) {
    kernels.pass = plan.shape == Shape::k1x16  ? tiled_kernel<1, 16, 2, false, T, W>
                   : plan.shape == Shape::k1x8 ? tiled_kernel<1, 8, 2, false, T, W>
                   : em                        ? tiled_kernel<4, 4, 1, true, T, W>
                                               : tiled_kernel<4, 4, 2, false, T, W>;
    return kernels;
  }
  switch (plan.shape) {
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
      two ? use_pass<Sums<1, 16, 2>, T, W>(kernels) : use_pass<Sums<1, 16, 1>, T, W>(kernels);
      break;
    case Shape::k1x8:
      use_pass<Sums<1, 8, 1>, T, W>(kernels);
      break;
    case Shape::kGeneric:
      break;
  }
  return kernels;
}

Kernels kernels_of(const Plan& plan) {
  const bool int8 = plan.layer.weight_type == CAPSEDGE_CUDA_INT8;
  if (plan.layer.type == CAPSEDGE_CUDA_FLOAT)
    return int8 ? kernels_of<float, int8_t>(plan) : kernels_of<float, float>(plan);
  return int8 ? kernels_of<Half, int8_t>(plan) : kernels_of<Half, Half>(plan);
}

Grid whole_grid(const Plan& plan) {
  const Layer& l = plan.layer;
  return {l.units, l.splits, plan.threads, 2 * l.floats * sizeof(float), l.splits};
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

Plan make_plan(const capsedge_cuda_routing& r) {
  Plan plan{};
  Layer& l = plan.layer;
  static_cast<capsedge_cuda_routing&>(l) = r;
  l.pose_size = r.rows * r.inner;
  l.pose_elements = r.rows * r.columns;
  l.positions = r.grid_height * r.grid_width;
  l.children = (r.shared ? r.height * r.width : r.kernel_height * r.kernel_width) * r.types;
  const int size = r.parents * l.pose_elements;
  l.floats = r.operation == CAPSEDGE_CUDA_EM ? 2 * size + r.parents : size;
  l.units = static_cast<int64_t>(r.images) * l.positions;
  plan.shape = vectors_fit(r) ? shape_of(r) : Shape::kGeneric;
  l.group = 1;
  while (l.group < r.parents && l.group < kWarp) l.group *= 2;
  plan.q = (r.parents + kWarp - 1) / kWarp;
  const bool generic = plan.shape == Shape::kGeneric;
  int groups = kThreads / l.group;
  while (groups > 1 && groups / 2 * l.group >= kWarp && groups / 2 >= l.children) groups /= 2;
  plan.threads = generic ? kThreads : std::max(kWarp, groups * l.group);
  groups = plan.threads / l.group;

  int processors = r.multiprocessors > 0 ? r.multiprocessors : multiprocessors_here();
  if (processors < 1) processors = kMostMultiprocessors;  // a GPU that is not here: scratch for any
  plan_tiles(plan, r.scheme);
  plan.kernels = kernels_of(plan);
  if (plan.together) {
    const int64_t blocks = (l.units + plan.together - 1) / plan.together;
    int64_t splits = std::min<int64_t>((2 * processors + blocks - 1) / std::max<int64_t>(blocks, 1),
                                       (l.children + 2 * l.tile - 1) / (2 * l.tile));
    splits = std::max<int64_t>(1, std::min<int64_t>(splits, kMaxSplits));
    set_parts(plan, splits);
    return plan;
  }

  // Few units leave most of a GPU idle: their children are shared out.
  const int64_t least = generic ? kTile : 4 * groups;  // children that are worth a block
  int64_t splits = 1;
  if (r.scheme == CAPSEDGE_CUDA_SPLIT) {
    splits = std::min(3, l.children);
  } else if (r.scheme == CAPSEDGE_CUDA_CLUSTER) {
    splits = std::min(kMaxCluster, l.children);
  } else if (l.units && l.units < processors) {
    splits = std::min<int64_t>((2 * processors + l.units - 1) / l.units, (l.children + least - 1) / least);
    splits = std::min<int64_t>(splits, kMaxSplits);
  }
  const bool fits = !generic && 2 * l.floats * static_cast<int64_t>(sizeof(float)) <= kSharedBytes;
  plan.whole = fits && splits == 1;
  set_parts(plan, splits);
  if (fits) plan_cluster(plan, r.scheme, splits);
  return plan;
}

void place(Plan& plan, void* workspace) {
  Layer& l = plan.layer;
  l.state = static_cast<float*>(workspace);
  l.partial = l.state + round_up(l.units * l.floats, 64);
  l.scratch = l.partial + round_up(l.units * l.splits * l.floats, 64);
}

const char* run_layer(const Plan& plan, void* stream) {
  const Layer& l = plan.layer;
  if (plan.whole) return launch(plan.kernels.whole, whole_grid(plan), stream, l);
  const size_t tile = static_cast<size_t>(l.tile) * l.parents * l.stride;  // 0 if not tiled
  const int64_t blocks = plan.together ? (l.units + plan.together - 1) / plan.together : l.units;
  const Grid pass{blocks, l.splits, plan.threads, tile * sizeof(float)}, unit{l.units, 1, kThreads, 0};
  if (l.operation == CAPSEDGE_CUDA_ATTENTION)
    if (const char* why = launch(plan.kernels.begin, unit, stream, l)) return why;
  for (int iteration = 0; iteration < l.iterations; ++iteration) {
    if (const char* why = launch(plan.kernels.pass, pass, stream, l, iteration)) return why;
    if (const char* why = launch(plan.kernels.finish, unit, stream, l, iteration)) return why;
  }
  return nullptr;
}

int failed(const char* why, char* error, size_t error_size) {
  if (!why) return 0;
  if (error && error_size) std::snprintf(error, error_size, "%s", why);
  return 1;
}

}  // namespace
}  // namespace cuda
}  // namespace capsedge

using namespace capsedge::cuda;

extern "C" int32_t capsedge_cuda_multiprocessors(void) { return multiprocessors_here(); }
#ifdef CAPSEDGE_EMULATE
extern "C" CAPSEDGE_CUDA_EXPORT void capsedge_cuda_emulate(int32_t multiprocessors) {
  emulated_multiprocessors = multiprocessors;
}
#endif

extern "C" int64_t capsedge_cuda_workspace(const capsedge_cuda_routing* layer) {
  if (amiss(*layer)) return -1;
  // Addresses are not known here: those that do not fit vectors take the generic kernel.
  capsedge_cuda_routing generic = *layer;
  generic.scheme = CAPSEDGE_CUDA_GENERIC;
  return std::max<int64_t>({1, make_plan(*layer).bytes, make_plan(generic).bytes});
}

extern "C" int capsedge_cuda_route(const capsedge_cuda_routing* layer, void* workspace, int64_t workspace_bytes,
                                   void* stream, char* error, size_t error_size) {
  if (const char* why = amiss(*layer)) return failed(why, error, error_size);
  if (layer->images == 0) return 0;
  Plan plan = make_plan(*layer);
  if (plan.bytes > workspace_bytes || (plan.bytes && !aligned(workspace, 16)))
    return failed("the workspace is too small or not aligned", error, error_size);
  place(plan, workspace);
  return failed(run_layer(plan, stream), error, error_size);
}

extern "C" int capsedge_cuda_squash(const void* x, void* y, int64_t outer, int32_t size, int64_t inner, float epsilon,
                                    int32_t type, void* stream, char* error, size_t error_size) {
  if (outer < 0 || size < 1 || inner < 1) return failed("a dimension is below 1", error, error_size);
  if (!(epsilon > 0)) return failed("epsilon is not positive", error, error_size);
  if (type != CAPSEDGE_CUDA_FLOAT && type != CAPSEDGE_CUDA_FLOAT16)
    return failed("inputs are float or float16", error, error_size);
  if (outer == 0) return 0;
  int group = 1;
  while (group < size && group < kWarp) group *= 2;
  const int64_t work = inner == 1 ? (outer + kThreads / group - 1) / (kThreads / group)
                                  : (outer * inner + kThreads - 1) / kThreads;
  const Grid grid{std::min<int64_t>(work, 32 * std::max(1, multiprocessors_here())), 1, kThreads, 0};
  const char* why = nullptr;
  if (type == CAPSEDGE_CUDA_FLOAT) {
    const float* from = static_cast<const float*>(x);
    float* to = static_cast<float*>(y);
    why = inner == 1 ? launch(squash_rows_kernel<float>, grid, stream, from, to, outer, size, epsilon, group)
                     : launch(squash_planes_kernel<float>, grid, stream, from, to, outer, size, inner, epsilon);
  } else {
    const Half* from = static_cast<const Half*>(x);
    Half* to = static_cast<Half*>(y);
    why = inner == 1 ? launch(squash_rows_kernel<Half>, grid, stream, from, to, outer, size, epsilon, group)
                     : launch(squash_planes_kernel<Half>, grid, stream, from, to, outer, size, inner, epsilon);
  }
  return failed(why, error, error_size);
}

extern "C" const char* capsedge_cuda_describe(const capsedge_cuda_routing* layer) {
  static thread_local char text[200];
  if (const char* why = amiss(*layer)) {
    std::snprintf(text, sizeof text, "%s", why);
    return text;
  }
  const Plan plan = make_plan(*layer);
  const char* names[] = {"generic", "4x4", "2x2", "1x16", "1x8"};
  const char* scheme = plan.together                           ? "tiled"
                       : plan.whole && plan.layer.splits > 1 ? "a cluster"
                       : plan.whole                          ? "one kernel"
                                                             : "a kernel a pass";
  std::snprintf(text, sizeof text, "%s, %s, %d threads, %d parts of %d children", names[static_cast<int>(plan.shape)],
                scheme, plan.threads, plan.layer.splits, plan.layer.part);
  return text;
}
