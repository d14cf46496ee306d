// ONNX Runtime with a CUDA provider, on a machine without a GPU: the CPU's ONNX Runtime, of which a few functions are
// replaced. Memory of the GPU is that of tests/tensorrt/cudart.c, which the host can read, so models run on the CPU, and
// kernels for CUDA become those for the CPU. What it checks and counts is how sessions with CUDA graphs are used.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "operators.h"
#include "ort_session_abi.h"

using namespace capsedge::ort;

namespace {

constexpr size_t kFunctions = 280;  // as many as version 19 of the interface has, at most
const void* table[kFunctions];
const OrtApi* real;

std::mutex mutex;
std::map<std::string, std::string> last_options;  // of the provider, of the session's that ours registers by
std::map<std::string, int> counts;
std::string refuse_append, refuse_graphs, refuse_run;  // messages of failures to come
int refusals = 0;                                      // of runs with a graph
std::map<const OrtSessionOptions*, bool> on_gpu;       // and whether with graphs
std::set<const OrtSession*> with_graphs;
std::map<const OrtRunOptions*, std::string> numbers;  // of graphs
std::set<std::tuple<const OrtSession*, std::string, std::thread::id, const OrtIoBinding*>> captured;
std::atomic<bool> capturing{false};

void count(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts[what];
}
OrtStatus* failure(const std::string& message) { return CreateStatus(real)(ORT_FAIL, message.c_str()); }

OrtStatus* available(char*** out, int* number) {
  static const char* names[] = {"CUDAExecutionProvider", "CPUExecutionProvider"};
  *out = const_cast<char**>(names);
  *number = 2;
  return nullptr;
}
OrtStatus* release_available(char**, int) { return nullptr; }

OrtStatus* create_cuda(OrtCUDAProviderOptionsV2** out) {
  *out = reinterpret_cast<OrtCUDAProviderOptionsV2*>(new std::map<std::string, std::string>);
  return nullptr;
}
std::map<std::string, std::string>& entries(const OrtCUDAProviderOptionsV2* options) {
  return *reinterpret_cast<std::map<std::string, std::string>*>(const_cast<OrtCUDAProviderOptionsV2*>(options));
}
OrtStatus* update_cuda(OrtCUDAProviderOptionsV2* options, const char* const* keys, const char* const* values, size_t number) {
  for (size_t i = 0; i < number; ++i) entries(options)[keys[i]] = values[i];
  return nullptr;
}
void release_cuda(OrtCUDAProviderOptionsV2* options) { delete &entries(options); }
OrtStatus* append_cuda(OrtSessionOptions* options, const OrtCUDAProviderOptionsV2* cuda) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!refuse_append.empty()) return failure(refuse_append);
  last_options = entries(cuda);
  on_gpu[options] = entries(cuda).count("enable_cuda_graph") != 0;
  return nullptr;
}

OrtStatus* add_entry(OrtSessionOptions* options, const char* key, const char* value) {
  for (const char* const ours : {capsedge::kCudaOperatorsKey, capsedge::kCudaKernelsKey, "session.disable_cpu_ep_fallback"}) {
    if (std::strcmp(key, ours) != 0) continue;
    const std::lock_guard<std::mutex> lock(mutex);
    last_options[key] = value;
    return nullptr;
  }
  return AddSessionConfigEntry(real)(options, key, value);
}
OrtStatus* create_session(const OrtEnv* env, const void* data, size_t bytes, const OrtSessionOptions* options, OrtSession** out) {
  bool graphs = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = on_gpu.find(options);
    graphs = found != on_gpu.end() && found->second;
    on_gpu.erase(options);
    if (graphs && !refuse_graphs.empty()) return failure(refuse_graphs);
  }
  count(graphs ? "sessions with graphs" : "sessions");
  OrtStatus* const status = CreateSessionFromArray(real)(env, data, bytes, options, out);
  const std::lock_guard<std::mutex> lock(mutex);
  if (status == nullptr && graphs) with_graphs.insert(*out);
  return status;
}
void release_session(OrtSession* session) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    with_graphs.erase(session);
    for (auto at = captured.begin(); at != captured.end();) at = std::get<0>(*at) == session ? captured.erase(at) : ++at;
  }
  if (capturing) count("violations");
  ReleaseSession(real)(session);
}

OrtStatus* create_memory_info(const char* name, OrtAllocatorType type, int id, OrtMemType memory, OrtMemoryInfo** out) {
  return std::strcmp(name, "Cuda") == 0 ? CreateCpuMemoryInfo(real)(OrtArenaAllocator, memory, out)
                                        : CreateMemoryInfo(real)(name, type, id, memory, out);
}
OrtStatus* add_run_entry(OrtRunOptions* options, const char* key, const char* value) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::strcmp(key, "gpu_graph_id") == 0) numbers[options] = value;
  return AddRunConfigEntry(real)(options, key, value);
}

OrtStatus* run(OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
               size_t input_count, const char* const* output_names, size_t output_count, OrtValue** outputs) {
  count(capturing ? "violations" : "plain");
  return Run(real)(session, options, input_names, inputs, input_count, output_names, output_count, outputs);
}
OrtStatus* run_with_binding(OrtSession* session, const OrtRunOptions* options, const OrtIoBinding* binding) {
  bool graphs = false, fresh = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    graphs = with_graphs.count(session) != 0;
    if (graphs && refusals > 0 && refusals--) return failure(refuse_run);
    fresh = graphs && captured.emplace(session, numbers[options], std::this_thread::get_id(), binding).second;
  }
  count(fresh ? "captured" : graphs ? "replayed" : capturing ? "violations" : "plain on the GPU");
  if (fresh) capturing = true;
  OrtStatus* const status = RunWithBinding(real)(session, options, binding);
  if (fresh) capturing = false;
  return status;
}

template <typename F>
void replace(size_t slot, F function) {
  table[slot] = reinterpret_cast<const void*>(function);
}

const OrtApiBase* real_base() {
  static const OrtApiBase* const base = [] {
    void* const library = dlopen(std::getenv("CAPSEDGE_MOCK_RUNTIME_ORT"), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"))();
  }();
  return base;
}

const OrtApi* make_table(uint32_t version) {
  real = real_base()->GetApi(version);
  std::memcpy(table, real, sizeof table);
  replace(kGetAvailableProviders, available);
  replace(kReleaseAvailableProviders, release_available);
  replace(kCreateCUDAProviderOptions, create_cuda);
  replace(kUpdateCUDAProviderOptions, update_cuda);
  replace(kReleaseCUDAProviderOptions, release_cuda);
  replace(kSessionOptionsAppendExecutionProvider_CUDA_V2, append_cuda);
  replace(kAddSessionConfigEntry, add_entry);
  replace(kCreateSessionFromArray, create_session);
  replace(kReleaseSession, release_session);
  replace(kCreateMemoryInfo, create_memory_info);
  replace(kAddRunConfigEntry, add_run_entry);
  replace(kRun, run);
  replace(kRunWithBinding, run_with_binding);
  return reinterpret_cast<const OrtApi*>(table);
}

const OrtApi* get_api(uint32_t version) {
  static const OrtApi* const made = make_table(version);  // libcapsedge asks for one version only
  return made;
}

const char* version() { return real_base()->GetVersionString(); }

}  // namespace

#define TESTED extern "C" __attribute__((visibility("default")))
TESTED const OrtApiBase* OrtGetApiBase() {
  static const OrtApiBase base{get_api, version};
  return &base;
}

// For tests: how often something happened, options of the last session, and failures to come.
TESTED int mock_count(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  return counts[what];
}
TESTED const char* mock_option(const char* key) {
  static std::string text;
  const std::lock_guard<std::mutex> lock(mutex);
  text = last_options[key];
  return text.c_str();
}
TESTED void mock_reset() {
  const std::lock_guard<std::mutex> lock(mutex);
  counts.clear();
  last_options.clear();
  refuse_append = refuse_graphs = refuse_run = "";
  refusals = 0;
}
TESTED void mock_refuse(const char* what, const char* message, int times) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::strcmp(what, "append") == 0) refuse_append = message;
  if (std::strcmp(what, "graphs") == 0) refuse_graphs = message;
  if (std::strcmp(what, "run") == 0) refuse_run = message, refusals = times;
}
