#include "cudart.h"

#ifndef CAPSEDGE_EMULATE

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "driver.h"
#include "system/system.h"

namespace capsedge {
namespace cuda {
namespace {

using cudart::Functions;

std::mutex mutex;
Functions found;
std::atomic<const Functions*> known{nullptr};
bool searched = false;
std::string why;

// Of a library, or of the process.
Functions functions_of(void* library) {
  Functions functions;
  const auto find = [library](const char* name) { return library ? symbol_of(library, name) : symbol_of_process(name); };
#define CAPSEDGE_LOOK_UP(name, result, parameters) \
  functions.name = reinterpret_cast<decltype(functions.name)>(find("cuda" #name));
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

// Stays open, because `found` may point into it.
bool usable_library(void* library, const char* name) { return library && usable(functions_of(library), name); }

// What the process has comes first: kernels and their caller then use the same one.
bool search() {
  why.clear();
  found = Functions();
  if (usable(functions_of(nullptr), "the CUDA runtime of this process")) return true;
  const char* const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so", "/usr/local/cuda/lib64/libcudart.so.13",
                               "/usr/local/cuda/lib64/libcudart.so.12"};
  for (const char* name : names)
    if (usable_library(loaded_library(name), name)) return true;
  if (const char* named = std::getenv("CAPSEDGE_CUDART"); named && *named) {
    if (usable_library(load_library(named), named)) return true;
    if (why.empty()) why = std::string(named) + " of CAPSEDGE_CUDART is not a CUDA runtime library";
  } else {
    for (const char* name : names)
      if (usable_library(load_library(name), name)) return true;
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
