// The metadata file of a TensorRT engine, NAME.engine.json next to it: capsedge/runtime/metadata/engine_metadata.py, with the same
// rules and words.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace capsedge::libcapsedge {

// What an engine depends on; for a portable one, the GPU is empty.
struct Machine {
  std::string tensorrt, cuda, gpu, compute_capability, architecture;
};

struct EngineMetadata {
  Machine machine;
  std::string plugin_sha256;  // empty: no plugin is needed
  std::string plugin, precision, source;
  struct Range {
    int64_t smallest = 0, best = 0, largest = 0;
  };
  Range batch, length;  // of the length 0 where the ONNX file leaves none free
  std::map<std::string, std::string> metadata;
  // An engine of TensorRT-RTX, for GPUs of these compute capabilities; otherwise one of TensorRT, for this machine's GPU.
  bool portable = false;
  std::vector<std::string> compute_capabilities;

  // The command that builds such an engine; it contains only checked values and is safe to run as printed.
  std::string rebuild() const;
};

// Throws JsonError.
EngineMetadata parse_engine_metadata(std::string_view document);

// The metadata file of the engine with these bytes. Throws Failure (CAPSEDGE_ARTEFACT) where it is missing or damaged, or
// belongs to other bytes.
EngineMetadata read_engine_metadata(const std::string& engine, std::string_view bytes);

// Compares an engine's metadata file with this machine, before TensorRT sees the engine. `plugin`: the plugin library that
// is here; empty: none. Throws Failure (CAPSEDGE_ARTEFACT).
void check_engine_metadata(const std::string& engine, const EngineMetadata& engine_metadata, const Machine& here, const std::string& plugin);

}  // namespace capsedge::libcapsedge
