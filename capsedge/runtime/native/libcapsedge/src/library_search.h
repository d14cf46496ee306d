// Libraries that are opened at run time: where they are searched, and the errors if they are not found.
#pragma once

#include <string>
#include <vector>

namespace capsedge::libcapsedge {

struct LibraryPlaces {
  const char* title;     // "ONNX Runtime"
  const char* file;      // "libonnxruntime.so": a folder's library is this, or this with a version behind it
  const char* variable;  // the environment variable that names the library or its folder
  const char* option;    // the member of capsedge_open_options that does; null: none
  std::vector<std::string> folders;  // relative to the folder that this library is in
  std::vector<std::string> names;    // for the system's loader
  const char* install;               // how to install it
};

// The library that the caller named, else the one named by the environment (it is an error if that does not open),
// else the first candidate that opens. Throws Failure (CAPSEDGE_ENVIRONMENT) that says what was searched.
// `refuses` says why a library that opens does not suit this machine, or nothing; the search then continues.
void* open_library(const LibraryPlaces& places, const std::string& named, std::string (*refuses)(void*) = nullptr);

// The file that a name stands for: the library in a folder, a path, or what is open under a bare name; links resolved.
// Empty: none.
std::string library_file(const std::string& named, const char* file);

// The folder that contains this library.
std::string own_folder();

}  // namespace capsedge::libcapsedge
