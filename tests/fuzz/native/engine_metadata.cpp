// The reader of metadata files; the command that it composes must be harmless in a shell, whatever the document says.

#include "engine_metadata.h"

#include <cstdlib>
#include <cstring>

#include "failure.h"
#include "json.h"

using namespace capsedge::libcapsedge;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const EngineMetadata engine_metadata = parse_engine_metadata({reinterpret_cast<const char*>(data), size});
    for (const char c : engine_metadata.rebuild())
      if (std::strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._+-:", c) == nullptr || c == '\0') std::abort();
    check_engine_metadata("the engine", engine_metadata, {"10.3.0", "12.6", "Orin", "8.7", "aarch64"}, "");
  } catch (const JsonError&) {
  } catch (const Failure& failure) {
    if (!is_utf8(failure.what())) std::abort();
  }
  return 0;
}
