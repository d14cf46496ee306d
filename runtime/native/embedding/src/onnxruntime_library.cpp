#include "onnxruntime_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "call.h"
#include "failure.h"

namespace capsedge::embedding {

namespace {

constexpr char kVariable[] = "CAPSEDGE_ONNXRUNTIME";
constexpr char kName[] = "libonnxruntime.so";
constexpr char kInstall[] =
    "Install it (pip install onnxruntime, or the system's libonnxruntime), and name its library or its folder in "
    "CAPSEDGE_ONNXRUNTIME or in capsedge_open_options.onnxruntime.";

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// The library in a folder: without a version, else the one whose name sorts last; empty if there is none.
std::string library_in(const std::string& folder) {
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return "";
  std::string best;
  while (const dirent* entry = readdir(opened)) {
    const std::string name = entry->d_name;
    if (name == kName) {
      best = name;
      break;
    }
    if (name.compare(0, sizeof kName, std::string(kName) + ".") == 0 && name > best) best = name;
  }
  closedir(opened);
  return best.empty() ? "" : folder + "/" + best;
}

// The folder that this library is in.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&kVariable), &info) == 0 || info.dli_fname == nullptr) return "";
  char resolved[PATH_MAX];
  const std::string path = realpath(info.dli_fname, resolved) ? resolved : info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

class Search {
 public:
  // Null if it does not open; what was tried is noted.
  void* open(const std::string& path) {
    dlerror();
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const error = dlerror();
    note(path, error ? error : "it does not open");
    return nullptr;
  }

  void* open_named(const std::string& path) {
    if (!is_folder(path)) return open(path);
    const std::string inside = library_in(path);
    if (!inside.empty()) return open(inside);
    note(path, std::string("no ") + kName + " in this folder");
    return nullptr;
  }

  void note(const std::string& where, const std::string& why) {
    tried_ += (tried_.empty() ? "" : "\n") + ("  " + where + ": " + why);
  }

  [[noreturn]] void fail(const std::string& what) const { throw Failure(CAPSEDGE_ENVIRONMENT, what, "Searched:\n" + tried_, kInstall); }

 private:
  std::string tried_;
};

void* open_library(const std::string& named) {
  Search search;
  if (!named.empty()) {
    if (void* const library = search.open_named(named)) return library;
    search.fail("ONNX Runtime does not open where capsedge_open_options.onnxruntime says.");
  }
  const char* const variable = std::getenv(kVariable);
  if (variable != nullptr && *variable != '\0') {
    if (void* const library = search.open_named(variable)) return library;
    search.fail(std::string("ONNX Runtime does not open where the environment variable ") + kVariable + " says.");
  }
  const std::string own = own_folder();
  // Beside this library; and from the Python package's lib folder (site-packages/capsedge/runtime/_native/lib) the
  // package onnxruntime.
  for (const std::string& folder : {own, own + "/../../../../onnxruntime/capi"}) {
    const std::string inside = library_in(folder);
    if (inside.empty()) search.note(folder, std::string("no ") + kName);
    else if (void* const library = search.open(inside)) return library;
  }
  for (const char* name : {"libonnxruntime.so.1", "libonnxruntime.so"})
    if (void* const library = search.open(name)) return library;
  search.fail("ONNX Runtime was not found.");
}

std::string path_of(void* library) {
  const void* const symbol = dlsym(library, "OrtGetApiBase");
  Dl_info info{};
  char resolved[PATH_MAX];
  if (symbol == nullptr || dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  return realpath(info.dli_fname, resolved) ? resolved : info.dli_fname;
}

OnnxRuntime load(const std::string& named) {
  void* const library = open_library(named);
  const auto get = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (get == nullptr) {
    dlclose(library);
    throw Failure(CAPSEDGE_ENVIRONMENT, "The library opened as ONNX Runtime is something else.",
                  "It has no function OrtGetApiBase.", kInstall);
  }
  OnnxRuntime runtime{};
  runtime.base = get();
  runtime.path = path_of(library);
  runtime.version = runtime.base->GetVersionString();
  runtime.api = runtime.base->GetApi(kOrtApiVersion);
  if (runtime.api == nullptr)
    throw Failure(CAPSEDGE_ENVIRONMENT, "ONNX Runtime " + runtime.version + " is too old.",
                  runtime.path + "; wanted: 1.19 or newer.", "pip install --upgrade onnxruntime, or name another.");
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
  } else if (!named.empty()) {
    const std::string wanted = is_folder(named) ? library_in(named) : named;
    char resolved[PATH_MAX];
    if (realpath(wanted.c_str(), resolved) == nullptr || loaded->path != resolved)
      fail_usage("This process has another ONNX Runtime open already.", "It is " + loaded->path + "; asked for: " + named + ".",
                 "Open all sessions of a process with the same one.");
  }
  return *loaded;
}

}  // namespace capsedge::embedding
