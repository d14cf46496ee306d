#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "failure.h"

namespace capsedge::libcapsedge {

std::string read_file(const std::string& path, int64_t most, const char* kind) {
  // Does not wait if it is a pipe.
  const int opened = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (opened < 0)
    fail_usage("The file " + path + " cannot be read.", std::string(std::strerror(errno)) + ".",
               "Check the name of the model file, and its permissions.");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(opened, "rb"), std::fclose);
  struct stat found {};
  if (!file || fstat(opened, &found) != 0 || !S_ISREG(found.st_mode))
    fail_usage(path + " is not a regular file.", "", std::string("Name ") + kind + ".");
  if (found.st_size > most)
    throw Failure(CAPSEDGE_ARTEFACT, path + " is too large for " + kind + ".",
                  "It has " + std::to_string(found.st_size) + " bytes; the most is " + std::to_string(most) + ".",
                  "Check that it is the right file.");
  std::string bytes(static_cast<size_t>(found.st_size), '\0');
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    fail_usage(path + " cannot be read.", "It ended early, or the disk failed.", "Try again.");
  return bytes;
}

bool is_file(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

}  // namespace capsedge::libcapsedge
