#include "capsedge_cuda.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "device_code.h"
#include "launch.h"
#include "plan.h"
#ifdef CAPSEDGE_EMULATE
#include "emulate.h"
#endif

namespace {

using namespace capsedge::cuda;

int failed(const char* why, char* error, size_t error_size) {
  if (!why) return 0;
  if (error && error_size) std::snprintf(error, error_size, "%s", why);
  return 1;
}

struct Squash {
  int64_t outer;
  int32_t size;
  int64_t inner;
  float epsilon;
};

const char* squash(const Squash& s, const void* x, void* y, int32_t type, void* stream) {
  int group = 1;
  while (group < s.size && group < kWarp) group *= 2;
  const int64_t work = s.inner == 1 ? (s.outer + kThreads / group - 1) / (kThreads / group)
                                    : (s.outer * s.inner + kThreads - 1) / kThreads;
  const Grid grid{std::min<int64_t>(work, 32 * std::max(1, multiprocessors_here())), 1, kThreads, 0};
  return s.inner == 1 ? launch(squash_rows_of(type), grid, stream, x, y, s.outer, s.size, s.epsilon, group)
                      : launch(squash_planes_of(type), grid, stream, x, y, s.outer, s.size, s.inner, s.epsilon);
}

}  // namespace

extern "C" int capsedge_cuda_load(const char* path, char* error, size_t error_size) {
  try {
    const std::string why = load_code(path);
    return failed(why.empty() ? nullptr : why.c_str(), error, error_size);
  } catch (const std::bad_alloc&) {
    return failed("there is not enough memory for the kernels", error, error_size);
  }
}

extern "C" int32_t capsedge_cuda_multiprocessors(void) { return multiprocessors_here(); }
#ifdef CAPSEDGE_EMULATE
extern "C" CAPSEDGE_CUDA_EXPORT void capsedge_cuda_emulate(int32_t multiprocessors) {
  emulated_multiprocessors = multiprocessors;
}
// From here on, the threads of blocks run in a different order.
extern "C" CAPSEDGE_CUDA_EXPORT void capsedge_cuda_emulate_order(uint32_t seed) { Emulator::instance().seed(seed); }
// Offsets in floats, from the beginning of the memory that a unit keeps between passes.
extern "C" CAPSEDGE_CUDA_EXPORT int32_t capsedge_cuda_emulate_place(const capsedge_cuda_routing* layer, int32_t parent,
                                                                    int32_t element) {
  return place_of(make_plan(*layer).layer, parent, element);
}
#endif

extern "C" int64_t capsedge_cuda_workspace(const capsedge_cuda_routing* layer) {
  return check_layer(*layer) ? -1 : std::max<int64_t>(1, most_bytes(*layer));
}

extern "C" int capsedge_cuda_route(const capsedge_cuda_routing* layer, void* workspace, int64_t workspace_bytes,
                                   void* stream, char* error, size_t error_size) {
  if (const char* why = check_layer(*layer)) return failed(why, error, error_size);
  if (layer->images == 0) return 0;
  Plan plan = make_plan(*layer);
  const int64_t needed = bytes_of(plan);
  if (needed > 0 && !workspace) return failed("the workspace is missing", error, error_size);
  if (needed > workspace_bytes) return failed("the workspace is too small", error, error_size);
  if (!aligned(workspace, 16)) return failed("the workspace is not aligned", error, error_size);
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
  return failed(squash({outer, size, inner, epsilon}, x, y, type, stream), error, error_size);
}

extern "C" const char* capsedge_cuda_describe(const capsedge_cuda_routing* layer) {
  static thread_local char text[200];
  if (const char* why = check_layer(*layer)) {
    std::snprintf(text, sizeof text, "%s", why);
    return text;
  }
  const Plan plan = make_plan(*layer);
  const char* names[] = {"generic", "4x4", "2x2", "1x16", "1x8"};
  const char* scheme = plan.together                           ? "tiled"
                       : plan.whole && plan.layer.splits > 1 ? "a cluster"
                       : plan.whole                          ? "one kernel"
                                                             : "a kernel per pass";
  std::snprintf(text, sizeof text, "%s, %s, %d threads, %d parts of %d children%s", names[static_cast<int>(plan.shape)],
                scheme, plan.threads, plan.layer.splits, plan.layer.part, plan.keeps ? ", votes kept" : "");
  return text;
}
