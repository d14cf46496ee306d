#include "onnxruntime_session.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "cuda_operators.h"
#include "cuda_runtime.h"
#include "generated/limits.h"
#include "instances.h"
#include "operators.h"
#include "system/system.h"
#if defined(__x86_64__)
#include "simd/features.h"
#endif

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace capsedge::libcapsedge {

namespace {

using namespace capsedge::ort;

constexpr char kCudaProvider[] = "CUDAExecutionProvider";
constexpr int kFatal = 4;  // its messages are returned in statuses, not printed on standard error
// Its messages: for a weight shared by two nodes, for a library that its provider lacks, for a node that it lacks; and ours.
constexpr char kShared[] = "Attempt to replace the existing tensor";
constexpr char kNoLibrary[] = "Failed to load library";
constexpr char kFellBack[] = "fallback to CPU EP has been explicitly disabled";
constexpr char kRefusedKernels[] = "capsedge cannot use the CUDA kernels: ";

// Whether fast code adds pairs of byte products in 16 bits with saturation, as on x86 processors without VNNI.
bool saturates_products_of_bytes() {
#if defined(__x86_64__)
  const Features here = features_here();
  return !here.avx512vnni && !here.avxvnni;
#else
  return false;
#endif
}

bool holds(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

void set(const OrtApi* api, OrtSessionOptions* options, const char* key, const std::string& value) {
  check(api, AddSessionConfigEntry(api)(options, key, value.c_str()));
}

[[noreturn]] void cannot_start_cuda(const std::string& message) {
  throw Failure(CAPSEDGE_ENVIRONMENT, std::string(kCudaProvider) + " did not start.", first_line(message),
                "Put the libraries of CUDA and cuDNN that ONNX Runtime was built for where the system's loader finds them "
                "(LD_LIBRARY_PATH), and install a driver that supports them: docs/how-to/libcapsedge.md lists both.");
}

// FP32 is FP32: the provider would use TF32, which keeps 10 bits, where the GPU has it.
void append_cuda(const OnnxRuntime& runtime, OrtSessionOptions* options, int32_t gpu, bool graphs) {
  const OrtApi* const api = runtime.api;
  const auto cuda = owned<OrtCUDAProviderOptionsV2>(api, ReleaseCUDAProviderOptions(api), CreateCUDAProviderOptions(api));
  const std::string number = std::to_string(gpu);
  const char* const keys[] = {"device_id", "use_tf32", "enable_cuda_graph"};
  const char* const values[] = {number.c_str(), "0", "1"};
  check(api, UpdateCUDAProviderOptions(api)(cuda.get(), keys, values, graphs ? 3 : 2));
  try {
    check(api, SessionOptionsAppendExecutionProvider_CUDA_V2(api)(options, cuda.get()));
  } catch (const Error& error) {
    cannot_start_cuda(error.what());
  }
  set(api, options, "session.disable_cpu_ep_fallback", "1");
}

// Kernels for exactly the nodes that the file has, or that fit the GPU.
void register_operators(const OnnxRuntime& runtime, OrtSessionOptions* options, const OpenOnnx& how) {
  const OrtApi* const api = runtime.api;
  if (how.nodes.empty()) return;
  if (!how.on_gpu()) {
    set(api, options, kInstancesKey, ort::instances(how.nodes));
  } else {
    std::string names;
    for (const std::string& node : how.nodes) names += (names.empty() ? "" : ",") + node;
    set(api, options, kCudaOperatorsKey, names);
    set(api, options, kCudaKernelsKey, how.kernels);
  }
  try {
    check(api, RegisterCustomOps(options, runtime.base));
  } catch (const Error& error) {
    throw Failure(CAPSEDGE_ENVIRONMENT, "The operators of capsedge cannot be registered in ONNX Runtime " + runtime.version + ".",
                  first_line(error.what()), "Open the model with CAPSEDGE_OPS_PORTABLE, which runs without them.");
  }
}

Owned<OrtSessionOptions> session_options(const OnnxRuntime& runtime, const OpenOnnx& how) {
  const OrtApi* const api = runtime.api;
  auto made = owned<OrtSessionOptions>(api, ReleaseSessionOptions(api), CreateSessionOptions(api));
  check(api, SetSessionLogSeverityLevel(api)(made.get(), kFatal));
  // 0 leaves the choice to ONNX Runtime: one thread per physical core of the machine, even if the process may use
  // only some of the cores.
  check(api, SetIntraOpNumThreads(api)(made.get(), how.threads ? how.threads : limited_processors()));
  check(api, SetInterOpNumThreads(api)(made.get(), 1));
  // A second line of defence after onnx_file.h: only this format, and an empty folder for external initializers.
  // ONNX Runtime 1.19 knows no such folder, 1.23 lets absolute paths leave it; 1.26 and newer keep to it.
  set(api, made.get(), "session.load_model_format", "ONNX");
  set(api, made.get(), "session.model_external_initializers_file_folder_path", kNullDevice);
  // Large constants are computed only when needed, not while the file is checked.
  set(api, made.get(), "optimization.constant_folding_max_output_size_in_bytes", std::to_string(limits::kRunBytes));
  if (saturates_products_of_bytes()) {  // `multiply_exactly` of the Python runtime says what these do
    set(api, made.get(), "session.x64quantprecision", "1");
    set(api, made.get(), "session.disable_quant_qdq", "1");
  }
  return made;
}

// CUDA kernels that are there and cannot be loaded, by the reason that the operators give.
[[noreturn]] void cannot_load_kernels(const std::string& why) {
  for (const char* const old : {"driver is too old", "the driver's is", "or newer is needed"})
    if (holds(why, old))
      throw NoKernelsHere("The CUDA kernels of capsedge do not run here.", why + ".",
                          "Install NVIDIA driver 580 or later, and an ONNX Runtime for CUDA 13.");
  throw Failure(CAPSEDGE_ENVIRONMENT, "The CUDA kernels of capsedge cannot be loaded.", why + ".",
                "Copy or install kernels.fatbin again, or open the model with CAPSEDGE_OPS_PORTABLE, which needs none.");
}

[[noreturn]] void cannot_load(const OnnxRuntime& runtime, const std::string& name, const std::string& message, bool on_gpu) {
  if (const size_t at = message.find(kRefusedKernels); at != std::string::npos)
    cannot_load_kernels(first_line(message.substr(at + sizeof kRefusedKernels - 1)));
  if (const size_t at = message.find(kNoLibrary); on_gpu && at != std::string::npos) cannot_start_cuda(message.substr(at));
  if (holds(message, kFellBack))
    throw Failure(CAPSEDGE_UNSUPPORTED, name + " does not run entirely on " + kCudaProvider + ".",
                  "Some of its operators would run on the CPU, with copies in between, but the requested device is binding.",
                  "Use an FP32 or FP16 file, run this one on the CPU, or build a TensorRT engine.");
  if (on_gpu && is_short_of_memory(message)) fail_without_memory(name + " does not fit the GPU.", message);
  if (on_gpu && (holds(message, "CUDA failure") || holds(message, "CUDNN failure") || holds(message, "CUBLAS failure")))
    cannot_start_cuda(message);
  if (holds(message, kShared))
    throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime " + runtime.version + " cannot multiply the bytes of " + name + " exactly here.",
                  "Two integer operators share an INT8 weight or zero point. On x86 processors without VNNI, ONNX "
                  "Runtime turns these into UINT8, and fails at the second operator.",
                  "Give each operator its own tensors, write QuantizeLinear and DequantizeLinear instead of integer "
                  "operators, or use a processor with VNNI.");
  throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime " + runtime.version + " cannot load " + name + ".", first_line(message),
                "Check the file with `capsedge inspect`, or export it again with `capsedge export`.");
}

std::vector<std::string> providers_of(const OrtApi* api) {
  char** listed = nullptr;
  int count = 0;
  check(api, GetAvailableProviders(api)(&listed, &count));
  const std::vector<std::string> names(listed, listed + count);
  check(api, ReleaseAvailableProviders(api)(listed, count));
  return names;
}

}  // namespace

Owned<OrtSession> make_session(const OnnxRuntime& runtime, std::string_view model, const OpenOnnx& how, bool graphs) {
  const Owned<OrtSessionOptions> options = session_options(runtime, how);
  if (how.on_gpu()) append_cuda(runtime, options.get(), *how.gpu, graphs);
  register_operators(runtime, options.get(), how);
  return owned<OrtSession>(runtime.api, ReleaseSession(runtime.api), [&](OrtSession** made) {
    return CreateSessionFromArray(runtime.api)(runtime.env, model.data(), model.size(), options.get(), made);
  });
}

Owned<OrtSession> open_session(const OnnxRuntime& runtime, std::string_view model, const std::string& name, const OpenOnnx& how) {
  try {
    return make_session(runtime, model, how);
  } catch (const Error& error) {
    cannot_load(runtime, name, error.what(), how.on_gpu());
  }
}

Owned<OrtRunOptions> run_options(const OrtApi* api) {
  auto made = owned<OrtRunOptions>(api, ReleaseRunOptions(api), CreateRunOptions(api));
  check(api, RunOptionsSetRunLogSeverityLevel(api)(made.get(), kFatal));
  return made;
}

std::string first_line(const std::string& message) {
  const size_t end = std::min<size_t>(message.find('\n'), 300);
  return message.size() > end ? message.substr(0, end) : message;
}

bool is_short_of_memory(const std::string& message) {
  std::string lower = message;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t code = lower.find("cuda failure 2");
  const bool numbered = code != std::string::npos && (code + 14 >= lower.size() || !std::isalnum(static_cast<unsigned char>(lower[code + 14])));
  return numbered || holds(lower, "allocate memory") || holds(lower, "out of memory");
}

void fail_without_memory(const std::string& what, const std::string& message) {
  throw Failure(CAPSEDGE_ENVIRONMENT, what, first_line(message),
                "Use a smaller batch, or free memory of the GPU: `nvidia-smi` shows what takes it.");
}

void check_gpu(const OnnxRuntime& runtime, int32_t gpu) {
  const std::vector<std::string> providers = providers_of(runtime.api);
  if (std::find(providers.begin(), providers.end(), kCudaProvider) == providers.end())
    throw Failure(CAPSEDGE_ENVIRONMENT, "ONNX Runtime " + runtime.version + " has no " + kCudaProvider + ".",
                  runtime.path + " has " + joined(providers) + ".",
                  "Use the library of the package onnxruntime-gpu or of ONNX Runtime's release for GPUs, and name it in "
                  "CAPSEDGE_ONNXRUNTIME or in capsedge_open_options.onnxruntime; or open the model on the CPU.");
  // Opened before the provider is, so that both use one CUDA runtime.
  const int count = cuda().device_count();
  if (gpu < 0 || gpu >= count)
    throw Failure(CAPSEDGE_ENVIRONMENT, "There is no GPU " + std::to_string(gpu) + ".",
                  "CUDA sees " + std::to_string(count) + " GPUs on this machine.", "`nvidia-smi` lists the GPUs.");
}

}  // namespace capsedge::libcapsedge
