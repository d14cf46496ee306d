// The CUDA runtime, opened at run time: devices, memory, streams, graphs (what capsedge/runtime/backends/cuda.py calls).
#pragma once

#include <cstddef>
#include <string>

namespace capsedge::libcapsedge {

using CudaStream = void*;
using CudaGraph = void*;  // executable
using CudaEvent = void*;

// Every function that fails throws Failure (CAPSEDGE_ENVIRONMENT) with CUDA's message.
class Cuda {
 public:
  int device_count() const;
  std::string compute_capability(int device) const;  // "8.7"
  std::string driver_version() const;                // the newest CUDA that the driver runs: "13.0"

  void* allocate(size_t bytes) const;
  void free(void* memory) const noexcept;
  void* allocate_host(size_t bytes) const;  // pinned
  void free_host(void* memory) const noexcept;
  // In the order of the stream.
  void to_device(void* to, const void* from, size_t bytes, CudaStream stream) const;
  void to_host(void* to, const void* from, size_t bytes, CudaStream stream) const;
  void copy(void* to, const void* from, size_t bytes, CudaStream stream) const;  // between any two kinds of memory
  // Whether a GPU can access the memory: its own, managed memory, or pinned host memory.
  bool reaches(const void* memory, int device) const;

  CudaStream create_stream() const;  // does not synchronize with the default stream
  void destroy_stream(CudaStream stream) const noexcept;
  void synchronize(CudaStream stream) const;
  CudaEvent create_event() const;
  void destroy_event(CudaEvent event) const noexcept;
  // Later work on the stream waits for the work on another stream; the host does not wait.
  void wait(CudaStream stream, CudaStream other, CudaEvent event) const;

  // Records what `enqueue` puts on the stream; null, with the reason, if it cannot be recorded. The stream remains
  // usable in either case.
  template <typename F>
  CudaGraph capture(CudaStream stream, std::string& why_not, F&& enqueue) const {
    begin_capture(stream);
    const bool accepted = enqueue();
    return end_capture(stream, accepted, why_not);
  }
  void launch(CudaGraph graph, CudaStream stream) const;
  void destroy_graph(CudaGraph graph) const noexcept;

 private:
  friend const Cuda& cuda();
  friend class OnDevice;
  Cuda();
  void begin_capture(CudaStream stream) const;
  CudaGraph end_capture(CudaStream stream, bool accepted, std::string& why_not) const;
  void check(const char* function, int code) const;

  struct Functions;
  const Functions* f_;
};

// One for the whole process. Throws Failure (CAPSEDGE_ENVIRONMENT) that lists the places searched.
const Cuda& cuda();

// Sets the GPU of the calling thread; the caller's own choice is restored afterwards.
class OnDevice {
 public:
  OnDevice(const Cuda& cuda, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const Cuda& cuda_;
  int before_ = 0;
};

// The newest CUDA that the driver runs, "13.0"; empty without a driver. Needs no libcudart.
std::string newest_cuda_of_driver();

// The GPU's name as reported by the driver; empty if it reports none.
std::string device_name(int device);

}  // namespace capsedge::libcapsedge
