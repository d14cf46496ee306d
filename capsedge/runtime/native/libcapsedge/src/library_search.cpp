#include "library_search.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>

#include "failure.h"

namespace capsedge::libcapsedge {

namespace {

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// The library in a folder: the one without a version, or else the one whose name sorts last; empty if there is none.
std::string library_in(const std::string& folder, const std::string& file) {
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return "";
  std::string best;
  while (const dirent* entry = readdir(opened)) {
    const std::string name = entry->d_name;
    if (name == file) {
      best = name;
      break;
    }
    if (name.compare(0, file.size() + 1, file + ".") == 0 && name > best) best = name;
  }
  closedir(opened);
  return best.empty() ? "" : folder + "/" + best;
}

std::string resolved(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) ? real : "";
}

class Search {
 public:
  Search(const LibraryPlaces& places, std::string (*refuses)(void*)) : places_(places), refuses_(refuses) {}

  // Null if it does not open; the attempt is recorded.
  void* open(const std::string& path) {
    dlerror();
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      const std::string why = refuses_ ? refuses_(library) : "";
      if (why.empty()) return library;
      note(path, why);
      return nullptr;
    }
    const char* const error = dlerror();
    note(path, error ? error : "it does not open");
    return nullptr;
  }

  void* open_in(const std::string& folder) {
    const std::string inside = library_in(folder, places_.file);
    if (!inside.empty()) return open(inside);
    note(folder, std::string("no ") + places_.file + (is_folder(folder) ? " in this folder" : ""));
    return nullptr;
  }

  void* open_named(const std::string& path) { return is_folder(path) ? open_in(path) : open(path); }

  [[noreturn]] void fail(const std::string& where) const {
    std::vector<std::string> why{"Searched:"};
    why.insert(why.end(), tried_.begin(), tried_.end());
    throw Failure(CAPSEDGE_ENVIRONMENT, places_.title + where, why, places_.install);
  }

 private:
  void note(const std::string& where, const std::string& why) {
    tried_.push_back("  " + where + ": " + why);
  }

  const LibraryPlaces& places_;
  std::string (*const refuses_)(void*);
  std::vector<std::string> tried_;
};

}  // namespace

const char* trusted_variable(const char* name) {
#ifdef __GLIBC__
  return secure_getenv(name);
#else
  return getauxval(AT_SECURE) != 0 ? nullptr : std::getenv(name);
#endif
}

std::string library_file(const std::string& named, const char* file) {
  if (is_folder(named)) return resolved(library_in(named, file));
  if (named.find('/') != std::string::npos) return resolved(named);
  // A bare name is resolved by the system's loader: the library it has open under that name.
  void* const open = dlopen(named.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (open == nullptr) return "";
  link_map* map = nullptr;
  const std::string path = dlinfo(open, RTLD_DI_LINKMAP, &map) == 0 ? resolved(map->l_name) : "";
  dlclose(open);
  return path;
}

std::string file_of(const void* function) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = resolved(info.dli_fname);
  return path.empty() ? info.dli_fname : path;
}

std::string own_folder() {
  static const char here = 0;
  const std::string path = file_of(&here);
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

void* open_library(const LibraryPlaces& places, const std::string& named, std::string (*refuses)(void*)) {
  Search search(places, refuses);
  if (!named.empty()) {
    if (void* const library = search.open_named(named)) return library;
    search.fail(std::string(" does not open where capsedge_open_options.") + places.option + " says.");
  }
  const char* const variable = trusted_variable(places.variable);
  if (variable != nullptr && *variable != '\0') {
    if (void* const library = search.open_named(variable)) return library;
    search.fail(std::string(" does not open where the environment variable ") + places.variable + " says.");
  }
  for (const std::string& folder : places.folders)
    if (void* const library = search.open_in(own_folder() + folder)) return library;
  for (const std::string& name : places.names)
    if (void* const library = search.open(name)) return library;
  search.fail(" was not found.");
}

}  // namespace capsedge::libcapsedge
