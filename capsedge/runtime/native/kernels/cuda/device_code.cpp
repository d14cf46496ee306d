#include "device_code.h"

#ifdef CAPSEDGE_EMULATE

namespace capsedge {
namespace cuda {

std::string load_code(const char*) { return {}; }

}  // namespace cuda
}  // namespace capsedge

#else

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "cudart.h"
#include "system/system.h"

namespace capsedge {
namespace cuda {
namespace {

using cudart::Functions;
using Codes = std::array<const void*, kKernels>;

Codes codes;
std::atomic<bool> loaded{false};
std::mutex mutex;
std::string loaded_path;

// At the start of what `nvcc -fatbin` writes.
struct FatBinaryHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
constexpr uint32_t kMagic = 0xba55ed50u;
// The machine code for one kind of GPU, as NVRTC writes it.
struct ElfHeader {
  unsigned char magic[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, segments, sections;
  uint32_t flags;
  uint16_t bytes, segment_bytes, segment_count, section_bytes, section_count, names;
};
static_assert(sizeof(ElfHeader) == 64, "as in a file");
constexpr uint16_t kCudaMachine = 190;
constexpr int kFatBinaryDriver = 13000;  // drivers before CUDA 13 do not know the machine code of its compiler

// The same for every way to name a file.
std::string absolute(const char* path) {
  const std::string real = resolved(path);
  return real.empty() ? path : real;
}

std::string read_file(const std::string& path, std::vector<char>& code) {
  const Opened opened = open_for_reading(path);
  if (!opened.why.empty()) return path + " cannot be read: " + opened.why;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(opened.file, std::fclose);
  if (!opened.regular) return path + " is not a file";
  code.resize(static_cast<size_t>(opened.bytes));
  if (std::fread(code.data(), 1, code.size(), file.get()) != code.size()) return path + " cannot be read to its end";
  return {};
}

std::string check_machine_code(const std::string& path, const std::vector<char>& code) {
  ElfHeader header{};
  std::memcpy(&header, code.data(), std::min(code.size(), sizeof header));
  if (code.size() < sizeof header || std::memcmp(header.magic, "\177ELF\2\1", 6) || header.machine != kCudaMachine)
    return path + " is not machine code of CUDA";
  const uint64_t end = std::max(header.sections + header.section_bytes * uint64_t{header.section_count},
                                header.segments + header.segment_bytes * uint64_t{header.segment_count});
  if (end > code.size())
    return path + " is damaged: it has " + std::to_string(code.size()) + " bytes of " + std::to_string(end);
  return {};
}

std::string check_file(const std::string& path, const std::vector<char>& code) {
  FatBinaryHeader header{};
  std::memcpy(&header, code.data(), std::min(code.size(), sizeof header));
  if (code.size() < sizeof header || header.magic != kMagic || header.header_bytes != sizeof header)
    return path + " is not a fat binary of CUDA";
  if (header.bytes != code.size() - sizeof header)
    return path + " is damaged: it has " + std::to_string(code.size() - sizeof header) + " bytes of " +
           std::to_string(header.bytes);
  return {};
}

std::string words(const Functions& cuda, int code) {
  cuda.GetLastError();  // reported here, so that no later call reports it
  return cuda.GetErrorString(code);
}

std::string capability_of(const Functions& cuda, int device, const char* between = ".") {
  int major = 0, minor = 0;
  cuda.DeviceGetAttribute(&major, cudart::kCapabilityMajor, device);
  cuda.DeviceGetAttribute(&minor, cudart::kCapabilityMinor, device);
  return std::to_string(major) + between + std::to_string(minor);
}

// For a driver of CUDA 12: the machine code for this GPU beside the fat binary, kernels.cuda12.sm87.cubin; empty if
// there is none, or the driver is newer.
std::string file_for_cuda_12(const Functions& cuda, int device, const std::string& path) {
  int driver = 0;
  if (cuda.DriverGetVersion(&driver) != cudart::kSuccess || driver <= 0 || driver >= kFatBinaryDriver) return {};
  const std::string file = path.substr(0, path.rfind('.')) + ".cuda12.sm" + capability_of(cuda, device, "") + ".cubin";
  return is_file(file) ? file : "";
}

std::string check_device(const Functions& cuda, int& device) {
  const int status = cuda.GetDevice(&device);
  if (status == cudart::kSuccess) return {};
  int driver = 0;
  if (status == cudart::kInsufficientDriver && cuda.DriverGetVersion(&driver) == cudart::kSuccess && driver > 0)
    return "the driver is too old for this CUDA runtime: " + words(cuda, status);
  return "there is no GPU that CUDA can use: " + words(cuda, status);
}

// Whether the driver takes the code for the current GPU, by one of the kernels.
std::string check_code(const Functions& cuda, int device) {
  cudart::FunctionAttributes attributes{};
  const int status = cuda.FuncGetAttributes(&attributes, codes[static_cast<size_t>(Kernel::capsedge_finish_kernel_f32)]);
  if (status == cudart::kSuccess) return {};
  const std::string why = words(cuda, status);
  if (status == cudart::kNoKernelImage)
    return "no code for the current GPU, of compute capability " + capability_of(cuda, device) + ": " + why;
  return (status == cudart::kUnsupportedPtx ? "the driver is too old for its code: " : "CUDA refuses its code: ") + why;
}

std::string find_kernels(const Functions& cuda, void* library) {
  for (int k = 0; k < kKernels; ++k) {
    const char* const name = name_of(static_cast<Kernel>(k));
    void* kernel = nullptr;
    if (const int status = cuda.LibraryGetKernel(&kernel, library, name))
      return std::string("no kernel ") + name + ": " + words(cuda, status);
    codes[static_cast<size_t>(k)] = kernel;
  }
  return {};
}

std::string load(const Functions& cuda, const std::string& named) {
  int device = 0;
  if (std::string why = check_device(cuda, device); !why.empty()) return why;
  const std::string other = file_for_cuda_12(cuda, device, named), &path = other.empty() ? named : other;
  std::vector<char> code;
  if (std::string why = read_file(path, code); !why.empty()) return why;
  if (std::string why = other.empty() ? check_file(path, code) : check_machine_code(path, code); !why.empty()) return why;
  void* library = nullptr;
  if (const int status = cuda.LibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0)) {
    const char* const old = status == cudart::kUnsupportedPtx ? ", because the driver is too old" : "";
    return path + " is not loaded" + old + ": " + words(cuda, status);
  }
  std::string why = find_kernels(cuda, library);
  if (why.empty()) why = check_code(cuda, device);
  if (why.empty()) return {};
  cuda.LibraryUnload(library);
  return path + " is not usable: " + why;
}

}  // namespace

const void* code_of(Kernel kernel) {
  return loaded.load(std::memory_order_acquire) ? codes[static_cast<size_t>(kernel)] : nullptr;
}

std::string load_code(const char* path) {
  if (!path || !*path) return "the file of the kernels is not named";
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string own = absolute(path);
  if (loaded)
    return own == loaded_path ? "" : "the kernels of " + loaded_path + " are loaded already, and " + own + " cannot be added";
  const Functions* const cuda = find_cudart(true);
  if (!cuda) return why_no_cudart();
  std::string why = load(*cuda, own);
  if (!why.empty()) return why;
  loaded_path = own;
  loaded.store(true, std::memory_order_release);
  return {};
}

}  // namespace cuda
}  // namespace capsedge

#endif
