#include "tensorrt_library.h"

#include <algorithm>

#include "failure.h"
#include "library_search.h"
#include "operators.h"
#include "system/system.h"

namespace capsedge::libcapsedge {

namespace {

#define CAPSEDGE_TEXT_(x) #x
#define CAPSEDGE_TEXT(x) CAPSEDGE_TEXT_(x)

// TensorRT's C++ interface differs between major versions.
constexpr char kFile[] = "libnvinfer.so." CAPSEDGE_TEXT(NV_TENSORRT_MAJOR);
constexpr char kInstall[] =
    "Install TensorRT " CAPSEDGE_TEXT(NV_TENSORRT_MAJOR)
    " (on a Jetson it comes with JetPack), and name its library or its folder in CAPSEDGE_TENSORRT or in "
    "capsedge_open_options.tensorrt.";
// TensorRT-RTX 1 has the interface of TensorRT 11.
constexpr int kRtxInterface = 11, kRtxMajor = 1;
constexpr char kRtxFile[] = "libtensorrt_rtx.so.1";
constexpr char kRtxInstall[] =
    "Install TensorRT-RTX (`pip install 'capsedge[rtx]'`), and name its library or its folder in CAPSEDGE_TENSORRT_RTX or "
    "in capsedge_open_options.tensorrt.";
constexpr char kPluginVariable[] = "CAPSEDGE_TENSORRT_PLUGIN";
// By the interface that this library is compiled with, which is that of the TensorRT that it opens.
constexpr char kPluginFile[] = "libcapsedge_tensorrt" CAPSEDGE_TEXT(NV_TENSORRT_MAJOR) ".so";
#if defined(__x86_64__)
constexpr char kPluginFolder[] = "/../../../../capsedge_cuda/x86_64/";
#else
constexpr char kPluginFolder[] = "/../../../../capsedge_cuda/aarch64/";
#endif
constexpr size_t kLongestWords = 300;

LibraryPlaces places_of(bool portable) {
  if (portable)
    return {"TensorRT-RTX", kRtxFile,   "CAPSEDGE_TENSORRT_RTX", "tensorrt", {"", "/../../../../tensorrt_rtx_libs"},
            {kRtxFile},     kRtxInstall};
  return {"TensorRT", kFile, "CAPSEDGE_TENSORRT", "tensorrt", {"", "/../../../../tensorrt_libs"}, {kFile}, kInstall};
}

TensorRt* load(bool portable, const std::string& named) {
  const LibraryPlaces places = places_of(portable);
  const std::string title = places.title;
  if (portable && NV_TENSORRT_MAJOR < kRtxInterface)
    throw Failure(CAPSEDGE_ENVIRONMENT, "This libcapsedge does not open engines of TensorRT-RTX.",
                  "It was compiled with the headers of TensorRT " CAPSEDGE_TEXT(NV_TENSORRT_MAJOR)
                  ", and TensorRT-RTX has the interface of TensorRT 11.",
                  "Compile it with the headers of TensorRT 11 (docs/how-to/libcapsedge.md).");
  void* const library = open_library(places, named);
  const auto number = [library](const char* name) {
    const auto get = reinterpret_cast<int32_t (*)() noexcept>(symbol_of(library, name));
    return get ? get() : -1;
  };
  const int major = number("getInferLibMajorVersion"), wanted = portable ? kRtxMajor : NV_TENSORRT_MAJOR;
  const auto create = reinterpret_cast<void* (*)(void*, int32_t) noexcept>(symbol_of(library, "createInferRuntime_INTERNAL"));
  if (create == nullptr || major != wanted) {
    const std::string found = major > 0 ? "It is version " + std::to_string(major) + "." : "It is something else.";
    close_library(library);
    throw Failure(CAPSEDGE_ENVIRONMENT,
                  "The library opened as " + title + " is not " + title + " " + std::to_string(wanted) + ".", found,
                  places.install);
  }
  auto* const opened = new TensorRt();
  opened->create = create;
  opened->path = file_of_address(reinterpret_cast<const void*>(create));
  opened->version = std::to_string(major);
  for (const char* part : {"Minor", "Patch", "Build"})
    opened->version += "." + std::to_string(number((std::string("getInferLib") + part + "Version").c_str()));
  opened->product = title + " " + opened->version;
  return opened;
}

bool knows_plugins(nvinfer1::IPluginRegistry& registry) {
  for (const char* space : {kDomain, ""}) {
    const bool known = std::all_of(kOperators.begin(), kOperators.end(), [&](const OperatorSpec& spec) {
      return !spec.plugin || registry.getCreator(spec.name, kPluginVersion, space) != nullptr;
    });
    if (known) return true;
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

TensorRt& tensorrt(bool portable, const std::string& named) {
  static std::mutex mutex;
  static TensorRt* kinds[2] = {};
  const std::lock_guard<std::mutex> lock(mutex);
  TensorRt*& loaded = kinds[portable];
  if (loaded == nullptr) {
    loaded = load(portable, named);
  } else if (!named.empty() && loaded->path != library_file(named, portable ? kRtxFile : kFile)) {
    fail_usage("This process has another " + std::string(places_of(portable).title) + " open already.",
               "It is " + loaded->path + "; asked for: " + named + ".", "Open all sessions of a process with the same one.");
  }
  return *loaded;
}

std::string find_plugin() {
  const std::string named = trusted_variable(kPluginVariable);
  if (!named.empty()) {
    if (!is_file(named))
      throw Failure(CAPSEDGE_ENVIRONMENT, "The TensorRT plugin library " + named + " does not exist.",
                    std::string("The environment variable ") + kPluginVariable + " names it.",
                    "Correct the variable, or unset it.");
    return named;
  }
  // Beside this library, or in the Python package capsedge-cuda.
  for (const char* folder : {"/", kPluginFolder})
    if (const std::string path = own_folder() + folder + kPluginFile; is_file(path)) return path;
  return "";
}

void load_plugin(nvinfer1::IPluginRegistry& registry, const std::string& library, TensorRtLogger& logger) {
  if (knows_plugins(registry)) return;  // loading twice is an error in TensorRT
  logger.clear();                       // so is asking for plugins that are not there
  registry.loadLibrary(library.c_str());
  const std::string why = logger.words();
  const bool known = knows_plugins(registry);
  logger.clear();
  if (!known)
    throw Failure(CAPSEDGE_ARTEFACT, "TensorRT rejects the plugin library " + library + ".", why,
                  "Install capsedge-cuda of this version, which has one for each TensorRT, or build without it: `--plugin native`.");
}

}  // namespace capsedge::libcapsedge
