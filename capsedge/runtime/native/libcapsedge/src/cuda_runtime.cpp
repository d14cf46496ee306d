#include "cuda_runtime.h"

#include "failure.h"
#include "library_search.h"
#include "system/system.h"

namespace capsedge::libcapsedge {

namespace {

// Numbers of the CUDA runtime's interface, the same in CUDA 12 and 13 (driver_types.h).
enum { kOldDriver = 35, kNoDevice = 100 };  // errors; the first also where there is no driver
enum { kHostToDevice = 1, kDeviceToHost = 2, kAnywhere = 4, kStreamNonBlocking = 1, kEventWithoutTiming = 2 };
enum { kCaptureThreadLocal = 1, kMajor = 75, kMinor = 76, kHostMemory = 1, kDeviceMemory = 2, kManagedMemory = 3 };

// cudaPointerAttributes; CUDA 13 appends further members.
struct Memory {
  int kind, device;
  unsigned char rest[248];
};

constexpr char kInstall[] =
    "Install CUDA 12 or 13 (JetPack has it in /usr/local/cuda), or name libcudart in the environment variable CAPSEDGE_CUDART.";

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// A driver runs programs of its own and older CUDA versions. Without a driver none runs, and the first library reports it.
std::string runs_here(void* library) {
  const auto number = [library](const char* name) {
    const auto get = reinterpret_cast<int (*)(int*)>(symbol_of(library, name));
    int version = 0;
    return get != nullptr && get(&version) == 0 ? version : 0;
  };
  const int runtime = number("cudaRuntimeGetVersion"), driver = number("cudaDriverGetVersion");
  if (driver == 0 || runtime / 1000 <= driver / 1000) return "";
  return "it is of CUDA " + version_text(runtime) + ", the driver runs " + version_text(driver);
}

}  // namespace

struct Cuda::Functions {
  int (*cudaGetDeviceCount)(int*);
  int (*cudaGetDevice)(int*);
  int (*cudaSetDevice)(int);
  int (*cudaDeviceGetAttribute)(int*, int, int);
  int (*cudaDriverGetVersion)(int*);
  int (*cudaMalloc)(void**, size_t);
  int (*cudaFree)(void*);
  int (*cudaHostAlloc)(void**, size_t, unsigned);
  int (*cudaFreeHost)(void*);
  int (*cudaMemcpyAsync)(void*, const void*, size_t, int, CudaStream);
  int (*cudaPointerGetAttributes)(Memory*, const void*);
  int (*cudaStreamCreateWithFlags)(CudaStream*, unsigned);
  int (*cudaStreamDestroy)(CudaStream);
  int (*cudaStreamSynchronize)(CudaStream);
  int (*cudaEventCreateWithFlags)(CudaEvent*, unsigned);
  int (*cudaEventRecord)(CudaEvent, CudaStream);
  int (*cudaStreamWaitEvent)(CudaStream, CudaEvent, unsigned);
  int (*cudaEventDestroy)(CudaEvent);
  int (*cudaStreamBeginCapture)(CudaStream, int);
  int (*cudaStreamEndCapture)(CudaStream, void**);
  int (*cudaGraphInstantiateWithFlags)(CudaGraph*, void*, unsigned long long);
  int (*cudaGraphLaunch)(CudaGraph, CudaStream);
  int (*cudaGraphExecDestroy)(CudaGraph);
  int (*cudaGraphDestroy)(void*);
  int (*cudaGetLastError)();
  const char* (*cudaGetErrorString)(int);
};

Cuda::Cuda() {
  // Beside this library, and from the Python package's lib folder the wheels of CUDA 13 and 12.
  const LibraryPlaces places{
      "The CUDA runtime library (libcudart)", "libcudart.so", "CAPSEDGE_CUDART", nullptr,
      {"", "/../../../../nvidia/cu13/lib", "/../../../../nvidia/cuda_runtime/lib"},
      {"libcudart.so.13", "libcudart.so.12", "libcudart.so", "/usr/local/cuda/lib64/libcudart.so"}, kInstall};
  void* const library = open_library(places, "", runs_here);
  Functions& f = *new Functions();
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol_of(library, name));
    if (function == nullptr)
      throw Failure(CAPSEDGE_ENVIRONMENT, "The CUDA runtime library is too old.", std::string("It has no function ") + name + ".",
                    kInstall);
  };
#define FIND(name) find(f.name, #name)
  FIND(cudaGetDeviceCount), FIND(cudaGetDevice), FIND(cudaSetDevice), FIND(cudaDeviceGetAttribute);
  FIND(cudaDriverGetVersion), FIND(cudaMalloc), FIND(cudaFree), FIND(cudaHostAlloc), FIND(cudaFreeHost);
  FIND(cudaMemcpyAsync), FIND(cudaStreamCreateWithFlags), FIND(cudaStreamDestroy), FIND(cudaStreamSynchronize);
  FIND(cudaPointerGetAttributes), FIND(cudaEventCreateWithFlags), FIND(cudaEventRecord), FIND(cudaStreamWaitEvent);
  FIND(cudaEventDestroy), FIND(cudaStreamBeginCapture), FIND(cudaStreamEndCapture), FIND(cudaGraphInstantiateWithFlags);
  FIND(cudaGraphLaunch), FIND(cudaGraphExecDestroy), FIND(cudaGraphDestroy), FIND(cudaGetLastError);
  FIND(cudaGetErrorString);
#undef FIND
  f_ = &f;
}

void Cuda::check(const char* function, int code) const {
  if (code == 0) return;
  f_->cudaGetLastError();  // clears the error, which the next call would report again
  const char* const words = f_->cudaGetErrorString(code);
  const std::string why = "CUDA error " + std::to_string(code) + ": " + (words ? words : "unknown") + ".";
  if (code == kOldDriver || code == kNoDevice)
    throw Failure(CAPSEDGE_ENVIRONMENT, "There is no NVIDIA GPU that CUDA can use on this machine.", why,
                  "Open an ONNX file on the CPU; if there is a GPU, install a newer NVIDIA driver: `nvidia-smi` shows what it finds.");
  throw Failure(CAPSEDGE_ENVIRONMENT, std::string("The GPU refused ") + function + ".", why,
                "Check `nvidia-smi` (on a Jetson: `tegrastats`); if memory is short, use a smaller batch or fewer contexts.");
}

int Cuda::device_count() const {
  int count = 0;
  check("cudaGetDeviceCount", f_->cudaGetDeviceCount(&count));
  return count;
}

std::string Cuda::compute_capability(int device) const {
  int major = 0, minor = 0;
  check("cudaDeviceGetAttribute", f_->cudaDeviceGetAttribute(&major, kMajor, device));
  check("cudaDeviceGetAttribute", f_->cudaDeviceGetAttribute(&minor, kMinor, device));
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string Cuda::driver_version() const {
  int version = 0;
  check("cudaDriverGetVersion", f_->cudaDriverGetVersion(&version));
  return version_text(version);
}

void* Cuda::allocate(size_t bytes) const {
  void* memory = nullptr;
  check("cudaMalloc", f_->cudaMalloc(&memory, bytes > 0 ? bytes : 1));
  return memory;
}

void Cuda::free(void* memory) const noexcept { f_->cudaFree(memory); }

void* Cuda::allocate_host(size_t bytes) const {
  void* memory = nullptr;
  check("cudaHostAlloc", f_->cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, 0));
  return memory;
}

void Cuda::free_host(void* memory) const noexcept { f_->cudaFreeHost(memory); }

void Cuda::to_device(void* to, const void* from, size_t bytes, CudaStream stream) const {
  check("cudaMemcpyAsync", f_->cudaMemcpyAsync(to, from, bytes, kHostToDevice, stream));
}

void Cuda::to_host(void* to, const void* from, size_t bytes, CudaStream stream) const {
  check("cudaMemcpyAsync", f_->cudaMemcpyAsync(to, from, bytes, kDeviceToHost, stream));
}

void Cuda::copy(void* to, const void* from, size_t bytes, CudaStream stream) const {
  check("cudaMemcpyAsync", f_->cudaMemcpyAsync(to, from, bytes, kAnywhere, stream));
}

bool Cuda::reaches(const void* memory, int device) const {
  Memory found{};
  if (f_->cudaPointerGetAttributes(&found, memory) != 0) {
    f_->cudaGetLastError();
    return false;
  }
  return found.kind == kHostMemory || found.kind == kManagedMemory || (found.kind == kDeviceMemory && found.device == device);
}

CudaStream Cuda::create_stream() const {
  CudaStream stream = nullptr;
  check("cudaStreamCreateWithFlags", f_->cudaStreamCreateWithFlags(&stream, kStreamNonBlocking));
  return stream;
}

void Cuda::destroy_stream(CudaStream stream) const noexcept { f_->cudaStreamDestroy(stream); }

void Cuda::synchronize(CudaStream stream) const {
  check("cudaStreamSynchronize", f_->cudaStreamSynchronize(stream));
}

CudaEvent Cuda::create_event() const {
  CudaEvent event = nullptr;
  check("cudaEventCreateWithFlags", f_->cudaEventCreateWithFlags(&event, kEventWithoutTiming));
  return event;
}

void Cuda::destroy_event(CudaEvent event) const noexcept { f_->cudaEventDestroy(event); }

void Cuda::wait(CudaStream stream, CudaStream other, CudaEvent event) const {
  check("cudaEventRecord", f_->cudaEventRecord(event, other));
  check("cudaStreamWaitEvent", f_->cudaStreamWaitEvent(stream, event, 0));
}

void Cuda::begin_capture(CudaStream stream) const {
  check("cudaStreamBeginCapture", f_->cudaStreamBeginCapture(stream, kCaptureThreadLocal));
}

CudaGraph Cuda::end_capture(CudaStream stream, bool accepted, std::string& why_not) const {
  void* recorded = nullptr;
  CudaGraph graph = nullptr;
  int code = f_->cudaStreamEndCapture(stream, &recorded);
  if (code == 0 && accepted && recorded) code = f_->cudaGraphInstantiateWithFlags(&graph, recorded, 0);
  if (recorded) f_->cudaGraphDestroy(recorded);
  if (graph != nullptr && code == 0) return graph;
  f_->cudaGetLastError();
  const char* const words = code ? f_->cudaGetErrorString(code) : nullptr;
  why_not = words ? words : "the engine holds work that cannot be captured";
  return nullptr;
}

void Cuda::launch(CudaGraph graph, CudaStream stream) const {
  check("cudaGraphLaunch", f_->cudaGraphLaunch(graph, stream));
}

void Cuda::destroy_graph(CudaGraph graph) const noexcept { f_->cudaGraphExecDestroy(graph); }

const Cuda& cuda() {
  static const Cuda& opened = *new Cuda();  // never closed: other threads may be in a call while the process ends
  return opened;
}

OnDevice::OnDevice(const Cuda& cuda, int device) : cuda_(cuda) {
  cuda.check("cudaGetDevice", cuda.f_->cudaGetDevice(&before_));
  cuda.check("cudaSetDevice", cuda.f_->cudaSetDevice(device));
}

OnDevice::~OnDevice() { cuda_.f_->cudaSetDevice(before_); }

std::string newest_cuda_of_driver() {
  void* const driver = load_library("libcuda.so.1");
  if (driver == nullptr) return "";
  const auto get = reinterpret_cast<int (*)(int*)>(symbol_of(driver, "cuDriverGetVersion"));
  int version = 0;
  return get != nullptr && get(&version) == 0 && version > 0 ? version_text(version) : "";
}

std::string device_name(int device) {
  void* const driver = load_library("libcuda.so.1");
  if (driver == nullptr) return "";
  const auto init = reinterpret_cast<int (*)(unsigned)>(symbol_of(driver, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(symbol_of(driver, "cuDeviceGet"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(symbol_of(driver, "cuDeviceGetName"));
  char text[256] = {};
  int handle = 0;
  const bool known = init && get && name && !init(0) && !get(&handle, device) && !name(text, sizeof text, handle);
  return known ? text : "";
}

}  // namespace capsedge::libcapsedge
