#include "kernels_file.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>

#include "capsedge_cuda.h"

namespace capsedge {
namespace tensorrt {

namespace {

constexpr char kVariable[] = "CAPSEDGE_CUDA_KERNELS", kFile[] = "kernels.fatbin";

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

std::string find_file() {
  if (const char* named = std::getenv(kVariable); named && *named) return named;
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&load_kernels), &own);
  const std::string path = own.dli_fname ? own.dli_fname : "";
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  return exists(folder + kFile) ? folder + kFile : folder + "../" + kFile;
}

}  // namespace

std::string load_kernels() {
  static std::atomic<bool> loaded{false};
  if (loaded.load(std::memory_order_acquire)) return "";
  char error[1024] = "";
  if (capsedge_cuda_load(find_file().c_str(), error, sizeof error)) return std::string("the CUDA kernels: ") + error;
  loaded.store(true, std::memory_order_release);
  return "";
}

}  // namespace tensorrt
}  // namespace capsedge
