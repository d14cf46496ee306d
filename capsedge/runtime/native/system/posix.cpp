#ifndef _WIN32

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#include <sched.h>
#include <sys/auxv.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <xlocale.h>
#endif

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "system/system.h"

namespace capsedge {

void* load_library(const std::string& path, std::string* why) {
  dlerror();
  if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* const error = dlerror();
  if (why != nullptr) *why = error ? error : "it does not open";
  return nullptr;
}

void* loaded_library(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

void close_library(void* library) { dlclose(library); }

void* symbol_of(void* library, const char* name) { return dlsym(library, name); }

void* symbol_of_process(const char* name) { return dlsym(RTLD_DEFAULT, name); }

#ifdef __APPLE__
// The loader tells no file of a handle, but gives the same handle for the same file.
std::string file_of_library(void* library) {
  for (uint32_t i = 0; i < _dyld_image_count(); ++i) {
    const char* const file = _dyld_get_image_name(i);
    void* const same = file ? dlopen(file, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (same != nullptr) dlclose(same);
    if (same == library) return resolved(file);
  }
  return "";
}
#else
std::string file_of_library(void* library) {
  link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? resolved(map->l_name) : "";
}
#endif

std::string file_of_address(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = resolved(info.dli_fname);
  return path.empty() ? info.dli_fname : path;
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

bool is_file(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const opened = opendir(folder.c_str());
  if (opened == nullptr) return names;
  while (const dirent* entry = readdir(opened)) names.push_back(entry->d_name);
  closedir(opened);
  return names;
}

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

Opened open_for_reading(const std::string& path) {
  Opened opened;
  const int number = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // not blocking: it may be a pipe
  if (number < 0) {
    opened.why = std::strerror(errno);
    return opened;
  }
  struct stat found {};
  opened.regular = fstat(number, &found) == 0 && S_ISREG(found.st_mode);
  opened.bytes = found.st_size;
  opened.file = fdopen(number, "rb");
  if (opened.file == nullptr) {
    opened.why = std::strerror(errno);
    close(number);
  }
  return opened;
}

std::string trusted_variable(const char* name) {
#if defined(__GLIBC__)
  const char* const value = secure_getenv(name);
#elif defined(__APPLE__)
  const char* const value = issetugid() ? nullptr : std::getenv(name);
#else
  const char* const value = getauxval(AT_SECURE) != 0 ? nullptr : std::getenv(name);
#endif
  return value ? value : "";
}

void set_default_variable(const char* name, const char* value) { setenv(name, value, 0); }

int limited_processors() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  const int allowed = CPU_COUNT(&set);
  return allowed < sysconf(_SC_NPROCESSORS_ONLN) ? allowed : 0;
#else
  return 0;  // macOS binds no process to processors
#endif
}

double to_double(const char* digits) {
  static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(digits, nullptr, kC);
}

}  // namespace capsedge

#endif
