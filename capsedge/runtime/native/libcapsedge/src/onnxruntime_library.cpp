#include "onnxruntime_library.h"

#include <mutex>

#include "call.h"
#include "failure.h"
#include "library_search.h"
#include "system/system.h"

namespace capsedge::libcapsedge {

namespace {

#define CAPSEDGE_NAME_IT "and name its library or its folder in CAPSEDGE_ONNXRUNTIME or in capsedge_open_options.onnxruntime."
#if defined(_WIN32)
constexpr char kFile[] = "onnxruntime.dll";
constexpr char kInstall[] =
    "Install it (pip install onnxruntime) and the Visual C++ Redistributable, which it needs, " CAPSEDGE_NAME_IT;
#elif defined(__APPLE__)
constexpr char kFile[] = "libonnxruntime.dylib";
constexpr char kInstall[] = "Install it (pip install onnxruntime), " CAPSEDGE_NAME_IT;
#else
constexpr char kFile[] = "libonnxruntime.so";
constexpr char kInstall[] = "Install it (pip install onnxruntime, or the system's libonnxruntime), " CAPSEDGE_NAME_IT;
#endif

// For the system's loader; none on Windows, which would open its own, older one.
std::vector<std::string> bare_names() {
#if defined(_WIN32)
  return {};
#elif defined(__APPLE__)
  return {kFile};
#else
  return {"libonnxruntime.so.1", kFile};
#endif
}

const LibraryPlaces& places() {
  // Beside this library; and from the Python package's lib folder (site-packages/capsedge/runtime/_native/lib) the
  // package onnxruntime.
  static const LibraryPlaces& places = *new LibraryPlaces{
      "ONNX Runtime", kFile, "CAPSEDGE_ONNXRUNTIME", "onnxruntime", {"", "/../../../../onnxruntime/capi"},
      bare_names(), kInstall};
  return places;
}

OnnxRuntime load(const std::string& named) {
  // ONNX Runtime 1.29 and newer reports models and machine to its vendor, keeps an identifier in the home folder, and
  // takes a no only from the environment, before its first session. Whoever wants it sets 0.
  set_default_variable("ORT_DISABLE_TELEMETRY", "1");
  void* const library = open_library(places(), named);
  const auto get = reinterpret_cast<const OrtApiBase* (*)()>(symbol_of(library, "OrtGetApiBase"));
  if (get == nullptr) {
    close_library(library);
    throw Failure(CAPSEDGE_ENVIRONMENT, "The library opened as ONNX Runtime is a different library.",
                  "It has no function OrtGetApiBase.", kInstall);
  }
  OnnxRuntime runtime{};
  runtime.base = get();
  runtime.path = file_of_address(reinterpret_cast<const void*>(get));
  runtime.version = runtime.base->GetVersionString();
  runtime.api = runtime.base->GetApi(kOrtApiVersion);
  if (runtime.api == nullptr)
    throw Failure(CAPSEDGE_ENVIRONMENT, "ONNX Runtime " + runtime.version + " is too old.",
                  runtime.path + "; expected: 1." + std::to_string(kOrtApiVersion) + " or newer.", "pip install --upgrade onnxruntime, or set another path.");
  ort::check(runtime.api, ort::CreateEnv(runtime.api)(ORT_LOGGING_LEVEL_FATAL, "capsedge", &runtime.env));
  ort::check(runtime.api, ort::CreateCpuMemoryInfo(runtime.api)(OrtArenaAllocator, OrtMemTypeDefault, &runtime.memory));
  return runtime;
}

}  // namespace

const OnnxRuntime& onnxruntime(const std::string& named) {
  static std::mutex mutex;
  static const OnnxRuntime* loaded = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded == nullptr) {
    loaded = new OnnxRuntime(load(named));
  } else if (!named.empty() && loaded->path != library_file(named, kFile)) {
    fail_usage("This process has another ONNX Runtime open already.", "It is " + loaded->path + "; asked for: " + named + ".",
               "Open all sessions of a process with the same one.");
  }
  return *loaded;
}

}  // namespace capsedge::libcapsedge
