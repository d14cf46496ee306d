// The reader of ONNX files: whatever the bytes are, a summary or a refusal of one kind.

#include "onnx_file.h"

#include <cstdlib>

#include "failure.h"

using namespace capsedge::libcapsedge;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const OnnxFile file = read_onnx(bytes, "the model");
    try {
      check_harmless(file, "the model");
    } catch (const Failure&) {
    }
    std::vector<std::string> kept;
    for (const auto& [name, span] : file.outputs)
      if (kept.empty()) kept.push_back(name);
    if (kept.empty()) return 0;
    // What is cut must read as the same model with fewer outputs.
    const OnnxFile again = read_onnx(keep_outputs(bytes, file, kept, "the model"), "the cut model");
    for (const auto& [name, span] : again.outputs)
      if (name != kept[0]) std::abort();
    if (again.external != file.external || again.operators != file.operators) std::abort();
  } catch (const Failure& failure) {
    if (!is_utf8(failure.what())) std::abort();
  }
  return 0;
}
