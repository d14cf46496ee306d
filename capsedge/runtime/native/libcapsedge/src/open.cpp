#include "open.h"

#include <algorithm>
#include <set>

#include "cuda_operators.h"
#include "failure.h"
#include "files.h"
#include "instances.h"
#include "generated/limits.h"
#include "onnx_file.h"
#include "operators.h"

namespace capsedge::libcapsedge {

namespace {

constexpr char kEngineSuffix[] = ".engine";

bool is_engine(const std::string& path) {
  constexpr size_t size = sizeof kEngineSuffix - 1;
  return path.size() > size && path.compare(path.size() - size, size, kEngineSuffix) == 0;
}

void check_not_empty(std::string_view model, const std::string& name) {
  if (model.empty())
    throw Failure(CAPSEDGE_ARTEFACT, name + " is empty.",
                  "It has 0 bytes; a download or an export was probably interrupted.",
                  "Fetch it again, or export it again with `capsedge export`.");
}

#if CAPSEDGE_WITH_TENSORRT

std::unique_ptr<Session> open_engine(const std::string& path, const OpenOptions& options) {
  if (options.ops != CAPSEDGE_OPS_AUTO)
    fail_usage(path + " is a TensorRT engine.", "It runs with the operators that it was built with.",
               "Open it with CAPSEDGE_OPS_AUTO.");
  const std::string engine = read_file(path, limits::kEngineBytes, "a TensorRT engine");
  check_not_empty(engine, path);
  EngineMetadata engine_metadata = read_engine_metadata(path, engine);
  Model opened;
  opened.metadata = read_metadata(engine_metadata.metadata);
  opened.fused = engine_metadata.plugin == "fused";
  const OpenEngine how{options.device, options.tensorrt, options.outputs, options.contexts, options.graphs != CAPSEDGE_GRAPHS_OFF};
  opened.backend = open_tensorrt(engine, path, engine_metadata, how, opened.outputs);
  opened.properties = std::move(engine_metadata.metadata);
  return std::make_unique<Session>(path, std::move(opened));
}
#else
std::unique_ptr<Session> open_engine(const std::string& path, const OpenOptions&) {
  throw Failure(CAPSEDGE_ENVIRONMENT, path + " is a TensorRT engine, and this libcapsedge was built without TensorRT.",
                "It is built with TensorRT on machines with the headers of TensorRT and CUDA.",
                "Build it there (docs/how-to/libcapsedge.md, \"TensorRT\"), or open the ONNX file that the engine was built from.");
}
#endif

// Digits and points, as in "1.20.3".
bool is_version(const std::string& text) {
  const auto fits = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  return !text.empty() && text.size() < 20 && std::all_of(text.begin(), text.end(), fits);
}

// Refuses operators of a later version that have no function body (Python: `_known_operators`, capsedge/runtime/backends/native_library.py).
void check_known_operators(const OnnxFile& file, const std::string& name) {
  std::set<std::string> unknown;
  for (const std::string& type : file.missing_functions())
    if (const std::string operation = ort::operator_of(type); find_operator(operation) == nullptr) unknown.insert(operation);
  if (unknown.empty()) return;
  const bool ours = file.producer == "capsedge" && is_version(file.producer_version);
  throw Failure(CAPSEDGE_ENVIRONMENT,
                name + " needs operators that this version of libcapsedge does not have: " +
                    joined({unknown.begin(), unknown.end()}) + ".",
                (ours ? "The file was written by capsedge " + file.producer_version + ". " : "") +
                    "This is libcapsedge " + CAPSEDGE_VERSION + ", and the nodes have no function bodies that could run instead.",
                "Install " + (ours ? "libcapsedge " + file.producer_version + " or later" : std::string("a later version")) +
                    ", or export the file again with `capsedge export --ops auto`, which writes the bodies.");
}

const Port* find_port(const std::vector<Port>& ports, const std::string& name) {
  const auto found = std::find_if(ports.begin(), ports.end(), [&](const Port& port) { return port.name == name; });
  return found == ports.end() ? nullptr : &*found;
}

// The decoder of a file that has one; null for others. It runs as the file does, but without graphs.
std::unique_ptr<Decoder> decoder_of(std::string_view model, const std::string& name, const Model& opened, OpenOnnx how) {
  const std::vector<Port>& ports = opened.backend->outputs();
  const bool declared = opened.metadata && opened.metadata->outputs;
  const Port* const poses = find_port(ports, declared ? opened.metadata->outputs->poses : "poses");
  const Port* const pictures = find_port(ports, kReconstruction);
  if (!opened.metadata || opened.metadata->regression() || poses == nullptr || pictures == nullptr) return nullptr;
  how.graphs = CAPSEDGE_GRAPHS_OFF;
  auto open = [how, name](std::string_view part) { return open_onnxruntime(part, name, how); };
  return std::make_unique<Decoder>(model, name, *poses, *pictures, open);
}

void check_device(const std::string& name, const OpenOptions& options) {
  if (options.provider == CAPSEDGE_PROVIDER_CUDA) return;
  if (options.device != 0)
    fail_usage("device is " + std::to_string(options.device) + " for " + name + ".", "The provider is the CPU.",
               "Leave it out, or choose CAPSEDGE_PROVIDER_CUDA; or open a TensorRT engine of `capsedge build`.");
  if (options.graphs == CAPSEDGE_GRAPHS_ON)
    fail_usage("graphs are required for " + name + " on the CPU.", "CUDA graphs need a GPU.",
               "Leave graphs out, or choose CAPSEDGE_PROVIDER_CUDA.");
}

// How a file runs, with the nodes that get kernels; `reason` receives why others have none on a GPU.
OpenOnnx kernels_for(std::string_view model, const OnnxFile& file, const std::string& name, const OpenOptions& options,
                     capsedge_ops ops, std::string& reason) {
  OpenOnnx how;
  how.threads = options.threads;
  how.library = options.onnxruntime;
  how.graphs = options.graphs;
  if (options.provider == CAPSEDGE_PROVIDER_CUDA) {
    CudaOperators chosen = choose_operators(model, file, name, ops, options.cuda_kernels);
    how.gpu = options.device;
    how.nodes = std::move(chosen.names);
    how.kernels = std::move(chosen.kernels);
    reason = std::move(chosen.others);
    return how;
  }
  if (ops != CAPSEDGE_OPS_PORTABLE) how.nodes = file.capsedge_types();
  std::set<std::string> missing;
  for (const std::string& type : file.missing_functions()) missing.insert(ort::operator_of(type));
  if (how.nodes.empty() && !missing.empty())
    throw Failure(CAPSEDGE_ENVIRONMENT, name + " runs only with the fused operators.",
                  "Its " + joined({missing.begin(), missing.end()}) + " nodes have no function body, and ops is portable.",
                  "Open it with CAPSEDGE_OPS_AUTO, or export it again with `capsedge export --ops auto`.");
  return how;
}

// Opens the backend, its decoder and what they run with; `whole` is the file without outputs left out.
void open_backend(Model& opened, std::string_view whole, std::string_view model, const OnnxFile& file, const std::string& name,
                  const OpenOptions& options, capsedge_ops ops) {
  const OpenOnnx how = kernels_for(whole, file, name, options, ops, opened.no_kernel_reason);
  check_overloads(file, name, how);
  opened.backend = open_onnxruntime(model, name, how);
  opened.decoder = decoder_of(model, name, opened, how);
  opened.fused = !how.nodes.empty();
  opened.expanded_routing = file.expanded_routing || !opened.no_kernel_reason.empty();
}

}  // namespace

std::unique_ptr<Session> open_onnx(std::string_view model, const std::string& name, const OpenOptions& options) {
  check_not_empty(model, name);
  check_device(name, options);
  OnnxFile file = read_onnx(model, name);
  check_harmless(file, name);
  Model opened;
  opened.metadata = read_metadata(file.metadata);
  if (options.ops == CAPSEDGE_OPS_FUSED && file.capsedge_nodes.empty())
    fail_usage(name + " has no capsedge nodes for the fused operators to run.",
               "It was exported with `--ops portable`, or by another tool.", "Open it with CAPSEDGE_OPS_AUTO.");
  check_known_operators(file, name);
  const std::string cut = options.all_outputs ? "" : keep_outputs(model, file, options.outputs, name);
  const std::string_view kept = options.all_outputs ? model : cut;
  try {
    open_backend(opened, model, kept, file, name, options, options.ops);
  } catch (const NoKernelsHere& problem) {  // only a session that uses the provider's CUDA can tell
    if (options.ops == CAPSEDGE_OPS_FUSED) throw;
    open_backend(opened, model, kept, file, name, options, CAPSEDGE_OPS_PORTABLE);
    opened.no_kernel_reason = problem.reason();
  }
  opened.properties = std::move(file.metadata);
  for (const auto& [output, span] : file.outputs) opened.outputs.push_back(output);
  return std::make_unique<Session>(name, std::move(opened));
}

std::unique_ptr<Session> open_file(const std::string& path, const OpenOptions& options) {
  if (is_engine(path)) return open_engine(path, options);
  return open_onnx(read_file(path, limits::kFileBytes, "an ONNX file"), path, options);
}

}  // namespace capsedge::libcapsedge
