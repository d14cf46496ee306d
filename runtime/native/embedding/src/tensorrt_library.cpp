#include "tensorrt_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "failure.h"
#include "files.h"
#include "library_search.h"

namespace capsedge::embedding {

namespace {

#define CAPSEDGE_TEXT_(x) #x
#define CAPSEDGE_TEXT(x) CAPSEDGE_TEXT_(x)

// TensorRT's C++ interface is one for each major version.
constexpr char kFile[] = "libnvinfer.so." CAPSEDGE_TEXT(NV_TENSORRT_MAJOR);
constexpr char kInstall[] =
    "Install TensorRT " CAPSEDGE_TEXT(NV_TENSORRT_MAJOR)
    " (on a Jetson it comes with JetPack), and name its library or its folder in CAPSEDGE_TENSORRT or in "
    "capsedge_open_options.tensorrt.";
constexpr char kPluginVariable[] = "CAPSEDGE_TENSORRT_PLUGIN", kPluginFile[] = "libcapsedge_tensorrt.so";
constexpr const char* kPlugins[] = {"Squash", "DynamicRouting", "EMRouting", "AttentionRouting"};
constexpr size_t kLongestWords = 300;

TensorRt* load(const std::string& named) {
  const LibraryPlaces places{
      "TensorRT", kFile, "CAPSEDGE_TENSORRT", "tensorrt", {"", "/../../../../tensorrt_libs"}, {kFile}, kInstall};
  void* const library = open_library(places, named);
  const auto number = [library](const char* name) {
    const auto get = reinterpret_cast<int32_t (*)() noexcept>(dlsym(library, name));
    return get ? get() : -1;
  };
  const int major = number("getInferLibMajorVersion");
  const auto create = reinterpret_cast<void* (*)(void*, int32_t) noexcept>(dlsym(library, "createInferRuntime_INTERNAL"));
  if (create == nullptr || major != NV_TENSORRT_MAJOR) {
    const std::string found = major > 0 ? "It is version " + std::to_string(major) + "." : "It is something else.";
    dlclose(library);
    throw Failure(CAPSEDGE_ENVIRONMENT,
                  "The library opened as TensorRT is not TensorRT " CAPSEDGE_TEXT(NV_TENSORRT_MAJOR) ".", found, kInstall);
  }
  auto* const opened = new TensorRt();
  opened->create = create;
  opened->path = file_of(reinterpret_cast<const void*>(create));
  opened->version = std::to_string(major);
  for (const char* part : {"Minor", "Patch", "Build"})
    opened->version += "." + std::to_string(number((std::string("getInferLib") + part + "Version").c_str()));
  return opened;
}

bool knows_plugins(nvinfer1::IPluginRegistry& registry) {
  for (const char* space : {"capsedge", ""}) {
    size_t known = 0;
    for (const char* name : kPlugins) known += registry.getCreator(name, "1", space) != nullptr;
    if (known == std::size(kPlugins)) return true;
  }
  return false;
}

}  // namespace

void TensorRtLogger::log(Severity severity, const char* message) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (severity == Severity::kERROR || severity == Severity::kINTERNAL_ERROR) {
      errors_[0] = std::move(errors_[1]);
      errors_[1] = std::string(message).substr(0, kLongestWords);
    } else if (severity == Severity::kWARNING) {
      warning_ = std::string(message).substr(0, kLongestWords);
    }
  } catch (...) {  // no memory for words
  }
}

std::string TensorRtLogger::words() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string said = errors_[0] + (errors_[0].empty() ? "" : " ") + errors_[1];
  if (said.empty()) said = warning_;
  errors_ = {};
  warning_.clear();
  return said.empty() ? "TensorRT gave no reason." : said;
}

void TensorRtLogger::clear() { static_cast<void>(words()); }

nvinfer1::IRuntime* TensorRt::create_runtime() {
  return static_cast<nvinfer1::IRuntime*>(create(&logger, NV_TENSORRT_VERSION));
}

TensorRt& tensorrt(const std::string& named) {
  static std::mutex mutex;
  static TensorRt* loaded = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded == nullptr) {
    loaded = load(named);
  } else if (!named.empty() && loaded->path != library_file(named, kFile)) {
    fail_usage("This process has another TensorRT open already.", "It is " + loaded->path + "; asked for: " + named + ".",
               "Open all sessions of a process with the same one.");
  }
  return *loaded;
}

std::string find_plugin() {
  const char* const named = trusted_variable(kPluginVariable);
  if (named != nullptr && *named != '\0') {
    if (!is_file(named))
      throw Failure(CAPSEDGE_ENVIRONMENT, std::string("The TensorRT plugin library ") + named + " does not exist.",
                    std::string("The environment variable ") + kPluginVariable + " names it.",
                    "Correct the variable, or unset it.");
    return named;
  }
  // Beside this library, or in the folder above, where the Python package has it.
  for (const char* folder : {"/", "/../"})
    if (const std::string path = own_folder() + folder + kPluginFile; is_file(path)) return path;
  return "";
}

void load_plugin(nvinfer1::IPluginRegistry& registry, const std::string& library, TensorRtLogger& logger) {
  if (knows_plugins(registry)) return;  // loading twice is an error of TensorRT's
  registry.loadLibrary(library.c_str());
  if (!knows_plugins(registry))
    throw Failure(CAPSEDGE_ARTEFACT, "TensorRT does not take the plugin library " + library + ".", logger.words(),
                  "Compile it for this TensorRT and CUDA (docs/tensorrt.md), or build without: `--plugin native`.");
}

}  // namespace capsedge::embedding
