// What capsedge_run costs compared with ONNX Runtime's own C call, in one process and in turns:
//   libcapsedge ONNXRUNTIME MODEL CALLS BLOCKS
// The peer's values are created once, outside the timed part: the leanest possible call. Prints a line per block:
// nanoseconds per call of ONNX Runtime, and of capsedge_run. Built and run by benchmarks/libcapsedge.py.
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "call.h"
#include "capsedge.h"
#include "ort_session_abi.h"

namespace {

using namespace capsedge::ort;

template <typename F>
double nanoseconds(int calls, F&& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / calls;
}

void require(capsedge_status* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", capsedge_status_message(status));
  std::exit(1);
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  const int calls = std::atoi(words[3]), blocks = std::atoi(words[4]);

  capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
  options.threads = 1;
  options.ops = CAPSEDGE_OPS_PORTABLE;  // the peer has no fused operators
  options.onnxruntime = words[1];
  capsedge_session* session = nullptr;
  require(capsedge_open(words[2], &options, &session));
  capsedge_description about = CAPSEDGE_DESCRIPTION_INIT;
  require(capsedge_describe(session, &about));
  capsedge_port in = CAPSEDGE_PORT_INIT;
  require(capsedge_input(session, 0, &in));
  capsedge_tensor input{};
  size_t values = 1;
  input.rank = in.rank;
  input.type = in.type;
  for (int i = 0; i < in.rank; ++i) values *= static_cast<size_t>(input.shape[i] = in.shape[i] < 0 ? 1 : in.shape[i]);
  std::vector<float> pixels(values, 0.5f);
  input.data = pixels.data();
  input.bytes = values * sizeof(float);
  std::vector<std::vector<float>> rooms(about.output_count, std::vector<float>(1 << 16));
  std::vector<capsedge_tensor> outputs(about.output_count);
  const auto ours = [&] {
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].data = rooms[i].data();
      outputs[i].bytes = rooms[i].size() * sizeof(float);
    }
    require(capsedge_run(session, &input, 1, outputs.data(), outputs.size()));
  };
  ours();

  const auto get = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(dlopen(words[1], RTLD_NOW), "OrtGetApiBase"));
  const OrtApi* const api = get()->GetApi(kOrtApiVersion);
  OrtEnv* env = nullptr;
  OrtSessionOptions* settings = nullptr;
  OrtSession* peer = nullptr;
  OrtMemoryInfo* memory = nullptr;
  check(api, CreateEnv(api)(ORT_LOGGING_LEVEL_FATAL, "peer", &env));
  check(api, CreateSessionOptions(api)(&settings));
  check(api, SetIntraOpNumThreads(api)(settings, 1));
  check(api, CreateSession(api)(env, words[2], settings, &peer));
  check(api, CreateCpuMemoryInfo(api)(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  const auto make = [&](const capsedge_tensor& t) {
    OrtValue* value = nullptr;
    check(api, CreateTensorWithDataAsOrtValue(api)(memory, t.data, t.bytes, t.shape, static_cast<size_t>(t.rank),
                                                   static_cast<ONNXTensorElementDataType>(t.type), &value));
    return value;
  };
  const char* const input_name = in.name;
  const OrtValue* const given = make(input);
  std::vector<const char*> names;
  std::vector<OrtValue*> found;
  for (size_t i = 0; i < outputs.size(); ++i) {
    capsedge_port out = CAPSEDGE_PORT_INIT;
    require(capsedge_output(session, i, &out));
    names.push_back(out.name);
    found.push_back(make(outputs[i]));
  }
  const auto theirs = [&] {
    check(api, Run(api)(peer, nullptr, &input_name, &given, 1, names.data(), names.size(), found.data()));
  };
  nanoseconds(calls, theirs);
  nanoseconds(calls, ours);
  for (int block = 0; block < blocks; ++block) {
    const double a = nanoseconds(calls, theirs);
    const double b = nanoseconds(calls, ours);
    std::printf("%.1f %.1f\n", a, b);
  }
  return 0;
}
