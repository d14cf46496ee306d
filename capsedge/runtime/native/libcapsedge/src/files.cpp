#include "files.h"

#include <cstdio>
#include <memory>

#include "failure.h"
#include "system/system.h"

namespace capsedge::libcapsedge {

std::string read_file(const std::string& path, int64_t most, const char* kind) {
  const Opened opened = open_for_reading(path);
  if (!opened.why.empty())
    fail_usage("The file " + path + " cannot be read.", opened.why + ".",
               "Check the name of the model file, and its permissions.");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(opened.file, std::fclose);
  if (!opened.regular) fail_usage(path + " is not a regular file.", "", std::string("Name ") + kind + ".");
  if (opened.bytes > most)
    throw Failure(CAPSEDGE_ARTEFACT, path + " is too large for " + kind + ".",
                  "It has " + std::to_string(opened.bytes) + " bytes; the most is " + std::to_string(most) + ".",
                  "Check that it is the right file.");
  std::string bytes(static_cast<size_t>(opened.bytes), '\0');
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    fail_usage(path + " cannot be read.", "It ended early, or the disk failed.", "Try again.");
  return bytes;
}

}  // namespace capsedge::libcapsedge
