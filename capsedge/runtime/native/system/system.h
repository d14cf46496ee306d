// What systems do differently: libraries opened at run time, files by name, the environment. Names are UTF-8 everywhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace capsedge {

// What separates the folders of a name, and a file that holds nothing.
#ifdef _WIN32
constexpr char kSeparators[] = "/\\", kNullDevice[] = "NUL";
#else
constexpr char kSeparators[] = "/", kNullDevice[] = "/dev/null";
#endif

// Null if it does not open; `why` then gets the system's message. Windows is asked for no bare name, because it prefers
// what lies in its own folders: an old onnxruntime.dll.
void* load_library(const std::string& path, std::string* why = nullptr);
// The library that the process has open under this name; null: none. To be closed like a loaded one.
void* loaded_library(const std::string& name);
void close_library(void* library);
void* symbol_of(void* library, const char* name);
// Of the program, and on POSIX of every library that shares its symbols.
void* symbol_of_process(const char* name);
// The file of a library that is open; empty if the loader does not report it. Links are resolved.
std::string file_of_library(void* library);
// The file that contains an address of an open library.
std::string file_of_address(const void* address);

bool is_folder(const std::string& path);
bool is_file(const std::string& path);
std::vector<std::string> names_in(const std::string& folder);
// Absolute, without links; empty if nothing is there.
std::string resolved(const std::string& path);

struct Opened {
  std::FILE* file = nullptr;  // to be closed by the caller, regular or not
  bool regular = false;       // a file with contents; a folder, pipe or device is none
  int64_t bytes = 0;
  std::string why;            // why nothing opened
};
// For reading; never waits for another process.
Opened open_for_reading(const std::string& path);

// An environment variable that names a file; empty if unset, or if the process has more rights than its caller.
std::string trusted_variable(const char* name);
// Sets an environment variable that is not set.
void set_default_variable(const char* name, const char* value);

// How many processors the process may use, if not all; else 0.
int limited_processors();

// strtod in the C locale, whatever the program's locale is.
double to_double(const char* digits);

}  // namespace capsedge
