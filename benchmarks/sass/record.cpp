// The kernels' host half with a launch that only writes down what it was asked: kernel, grid, threads, shared memory
// and the arguments' bytes, which are laid out as on the device. The planner is the real one.
#define launch emulated_launch
#include "launch.h"
#undef launch

#include <cstring>
#include <string>
#include <vector>

namespace capsedge {
namespace cuda {

struct Launch {
  void (*kernel)();
  int64_t x;
  int32_t y, threads, cluster;
  int64_t shared;
  std::string arguments;
};
static std::vector<Launch> launches;

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.resize((bytes.size() + alignof(T) - 1) / alignof(T) * alignof(T));
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename... Parameters, typename... Arguments>
const char* launch(void (*kernel)(Parameters...), const Grid& grid, void*, const Arguments&... arguments) {
  std::string bytes;
  (append(bytes, static_cast<Parameters>(arguments)), ...);
  launches.push_back({reinterpret_cast<void (*)()>(kernel), grid.x, grid.y, grid.threads, grid.cluster,
                      static_cast<int64_t>(grid.shared), bytes});
  return nullptr;
}

}  // namespace cuda
}  // namespace capsedge

#include "capsedge_cuda.cu"
#include "kernels.cu"
#include "launch.cu"
#include "plan.cu"

extern "C" {
CAPSEDGE_CUDA_EXPORT int32_t capsedge_recorded() { return static_cast<int32_t>(capsedge::cuda::launches.size()); }
CAPSEDGE_CUDA_EXPORT void capsedge_forget() { capsedge::cuda::launches.clear(); }
// x, y, threads, cluster, shared, kernel's address, bytes of arguments.
CAPSEDGE_CUDA_EXPORT void capsedge_launch(int32_t number, int64_t* numbers) {
  const auto& l = capsedge::cuda::launches.at(static_cast<size_t>(number));
  const int64_t all[] = {l.x, l.y, l.threads, l.cluster, l.shared, reinterpret_cast<int64_t>(l.kernel),
                         static_cast<int64_t>(l.arguments.size())};
  std::memcpy(numbers, all, sizeof all);
}
CAPSEDGE_CUDA_EXPORT const char* capsedge_arguments(int32_t number) {
  return capsedge::cuda::launches.at(static_cast<size_t>(number)).arguments.data();
}
}
