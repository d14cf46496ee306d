#include "library_search.h"

#include "failure.h"
#include "system/system.h"

namespace capsedge::libcapsedge {

namespace {

// Whether a name is a library's with a version: libx.so.1, on macOS libx.1.dylib.
bool is_version_of(const std::string& name, const std::string& file) {
#ifdef __APPLE__
  constexpr char kEnd[] = ".dylib";
  constexpr size_t kSize = sizeof kEnd - 1;
  const std::string stem = file.substr(0, file.size() - kSize) + ".";
  return name.size() > file.size() && name.compare(0, stem.size(), stem) == 0 &&
         name.compare(name.size() - kSize, kSize, kEnd) == 0;
#else
  return name.compare(0, file.size() + 1, file + ".") == 0;
#endif
}

// The library in a folder: the one without a version, or else the one whose name sorts last; empty if there is none.
std::string library_in(const std::string& folder, const std::string& file) {
  std::string best;
  for (const std::string& name : names_in(folder)) {
    if (name == file) {
      best = name;
      break;
    }
    if (is_version_of(name, file) && name > best) best = name;
  }
  return best.empty() ? "" : folder + "/" + best;
}

class Search {
 public:
  Search(const LibraryPlaces& places, std::string (*refuses)(void*)) : places_(places), refuses_(refuses) {}

  // Null if it does not open; the attempt is recorded.
  void* open(const std::string& path) {
    std::string why;
    if (void* const library = load_library(path, &why)) {
      why = refuses_ ? refuses_(library) : "";
      if (why.empty()) return library;
    }
    note(path, why);
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

std::string library_file(const std::string& named, const char* file) {
  if (is_folder(named)) return resolved(library_in(named, file));
  if (named.find_first_of(kSeparators) != std::string::npos) return resolved(named);
  // A bare name is resolved by the system's loader: the library it has open under that name.
  void* const library = loaded_library(named);
  if (library == nullptr) return "";
  const std::string path = file_of_library(library);
  close_library(library);
  return path;
}

std::string own_folder() {
  static const char here = 0;
  const std::string path = file_of_address(&here);
  const size_t slash = path.find_last_of(kSeparators);
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

void* open_library(const LibraryPlaces& places, const std::string& named, std::string (*refuses)(void*)) {
  Search search(places, refuses);
  if (!named.empty()) {
    if (void* const library = search.open_named(named)) return library;
    search.fail(std::string(" does not open where capsedge_open_options.") + places.option + " says.");
  }
  const std::string variable = trusted_variable(places.variable);
  if (!variable.empty()) {
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
