#include "cudart.h"

#ifndef CAPSEDGE_EMULATE

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "driver.h"

namespace capsedge {
namespace cuda {
namespace {

using cudart::Functions;

std::mutex mutex;
Functions found;
std::atomic<const Functions*> known{nullptr};
bool searched = false;
std::string why;

template <typename F>
void look_up(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
}

Functions functions_of(void* library) {
  Functions functions;
#define CAPSEDGE_LOOK_UP(name, result, parameters) look_up(library, "cuda" #name, functions.name);
  CAPSEDGE_CUDART(CAPSEDGE_LOOK_UP)
  CAPSEDGE_CUDART_LIBRARY(CAPSEDGE_LOOK_UP)
  return functions;
}

std::string version_of(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Whether it has all functions, its own or the driver's, and the driver runs its CUDA version. `why` gets the reason if
// not.
bool usable(Functions f, const std::string& name) {
  int runtime = 0, driver = 0;
  if (!f.RuntimeGetVersion || f.RuntimeGetVersion(&runtime) != cudart::kSuccess) return false;
  bool complete = true, own = true;
#define CAPSEDGE_COMPLETE(name, result, parameters) complete = complete && f.name;
  CAPSEDGE_CUDART(CAPSEDGE_COMPLETE)
#define CAPSEDGE_OWN(name, result, parameters) own = own && f.name;
  CAPSEDGE_CUDART_LIBRARY(CAPSEDGE_OWN)
  if (complete && !own) complete = take_from_driver(f);
  if (!complete) {
    why += (why.empty() ? "" : "; ") + name + " is CUDA " + version_of(runtime) +
           ", and 12.8 or newer is needed, or a driver for CUDA 12";
    return false;
  }
  const bool runs = f.DriverGetVersion(&driver) != cudart::kSuccess || !driver || runtime / 1000 <= driver / 1000;
  if (runs || !found.GetDevice) found = f;
  if (runs) return true;
  why += (why.empty() ? "" : "; ") + name + " is CUDA " + version_of(runtime) + ", and the driver's is " + version_of(driver);
  return false;
}

bool usable_file(const char* name, int flags) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);  // stays open, because `found` may point into it
  return library && usable(functions_of(library), name);
}

// What the process has comes first: kernels and their caller then use the same one.
bool search() {
  why.clear();
  found = Functions();
  if (usable(functions_of(RTLD_DEFAULT), "the CUDA runtime of this process")) return true;
  const char* const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so", "/usr/local/cuda/lib64/libcudart.so.13",
                               "/usr/local/cuda/lib64/libcudart.so.12"};
  for (const char* name : names)
    if (usable_file(name, RTLD_NOLOAD)) return true;
  if (const char* named = std::getenv("CAPSEDGE_CUDART"); named && *named) {
    if (usable_file(named, 0)) return true;
    if (why.empty()) why = std::string(named) + " of CAPSEDGE_CUDART is not a CUDA runtime library";
  } else {
    for (const char* name : names)
      if (usable_file(name, 0)) return true;
  }
  // One that only the driver keeps from running says so itself, at every call.
  return found.GetDevice != nullptr;
}

}  // namespace

const Functions* find_cudart(bool again) {
  if (const Functions* functions = known.load(std::memory_order_acquire)) return functions;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!known.load() && (again || !searched) && search()) known.store(&found, std::memory_order_release);
  searched = true;
  return known.load();
}

std::string why_no_cudart() {
  const std::lock_guard<std::mutex> lock(mutex);
  return why.empty() ? "no CUDA runtime library (libcudart.so.13 or .12) was found" : why;
}

}  // namespace cuda
}  // namespace capsedge

#endif
