// The CUDA runtime's state: streams whose work runs as late as the host allows, events, graphs as lists of work.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "machine.h"

namespace ptx {

using Work = std::function<void()>;

struct Capture {
  std::vector<Work> work;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
};

struct Stream {
  int gpu = 0;
  bool blocking = true;  // the legacy stream and this one wait for each other
  std::deque<Work> queue;
  uint64_t submitted = 0, completed = 0;
  std::unique_ptr<Capture> capture;
};

struct Event {
  int gpu = 0;
  std::shared_ptr<Stream> stream;  // of the last record
  uint64_t position = 0;
  const Capture* captured = nullptr;
};

struct Registered {
  std::string name;
  const Kernel* kernel = nullptr;  // null where no code is for this GPU
  int shared_opt_in = 48 << 10;    // bytes of dynamic shared memory that it was given leave for
  bool large_clusters = false;
};


class Runtime {
 public:
  static Runtime& instance();

  std::recursive_mutex mutex;
  Module module;
  Machine machine;
  std::map<const void*, Registered> functions;  // by their place in the host's code
  std::map<std::string, std::pair<int, int>> refusals;  // calls before one fails, and with what
  std::vector<Launch> done;
  std::string fault;  // what a kernel did that ended all work

  // What every call returns from the first fault of a kernel on.
  cudaError_t sticky = cudaSuccess;

  bool has_device() const { return machine.limits != nullptr; }
  int gpus = 1;
  uint64_t memory = uint64_t{8} << 30;  // bytes of each
  // The calling thread's.
  static int& gpu();
  // Null if there is no such stream.
  std::shared_ptr<Stream> stream(cudaStream_t handle);
  cudaStream_t create_stream(bool blocking);
  cudaError_t destroy_stream(cudaStream_t handle);
  // Puts work behind all that is on the stream, or into the graph that the stream captures.
  cudaError_t submit(cudaStream_t handle, Work work);
  // Runs what is on a stream, as far as a position.
  void drain(const std::shared_ptr<Stream>& stream, uint64_t position);
  void drain_all();
  // Of calls that no capture allows: not success, and the captures are invalid.
  cudaError_t refuse_in_capture(bool any_thread);
  cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode);
  cudaError_t end_capture(cudaStream_t handle, std::unique_ptr<std::vector<Work>>& work);

 private:
  Runtime();
  bool legacy(cudaStream_t handle) const { return handle == nullptr || handle == cudaStreamLegacy; }

  std::map<cudaStream_t, std::shared_ptr<Stream>> streams_;
  std::map<int, std::shared_ptr<Stream>> legacy_;  // by GPU
};

// A launch that the GPU would take, made ready; or why it would not.
cudaError_t check_launch(const Registered& function, const cudaLaunchConfig_t& config, void** arguments, Launch& launch);
// Blocks that a multiprocessor holds at once.
int resident_blocks(const Registered& function, int threads, size_t shared);

}  // namespace ptx
