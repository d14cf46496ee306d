// One run of a model in an ONNX Runtime that is loaded from a file, with the operator library registered:
//   ort_run ONNXRUNTIME OPERATORS MODEL INPUTS... -- OUTPUTS...
// An input is name:type:shape:file (type f, h or B: float, float16, uint8; shape like 2x3x4, file of raw values), an output name:file.
// RUNS repeats the run, THREADS sets the threads (1 and 2). For tests of builds that Python cannot load here.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "call.h"
#include "ort_session_abi.h"

namespace {

using namespace capsedge;
using namespace capsedge::ort;

std::vector<std::string> split(const std::string& text, char at) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

const OrtApi* load(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) throw Error(dlerror());
  const auto get = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (get == nullptr) throw Error(std::string(path) + " is no ONNX Runtime");
  std::printf("onnxruntime %s\n", get()->GetVersionString());
  const OrtApi* api = get()->GetApi(kOrtApiVersion);
  if (api == nullptr) throw Error("this ONNX Runtime is too old");
  return api;
}

struct Input {
  std::string name;
  std::string bytes;
  Shape shape;
  ONNXTensorElementDataType type;
};

int number(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

ONNXTensorElementDataType type_of(const std::string& letter) {
  if (letter == "f") return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  if (letter == "h") return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
  if (letter == "B") return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
  throw Error("the type of an input is f, h or B, not " + letter);
}

Input read_input(const std::string& text) {
  const auto parts = split(text, ':');
  if (parts.size() != 4) throw Error("an input is name:type:shape:file, not " + text);
  std::ifstream file(parts[3], std::ios::binary);
  Input input{parts[0], {std::istreambuf_iterator<char>(file), {}}, {},
              type_of(parts[1])};
  for (const std::string& d : split(parts[2], 'x')) input.shape.push_back(std::stoll(d));
  return input;
}

void run(int count, char** words) {
  const OrtApi* api = load(words[1]);
  OrtEnv* env = nullptr;
  check(api, CreateEnv(api)(ORT_LOGGING_LEVEL_ERROR, "ort_run", &env));
  OrtSessionOptions* options = nullptr;
  check(api, CreateSessionOptions(api)(&options));
  check(api, SetIntraOpNumThreads(api)(options, number("THREADS", 2)));
  check(api, RegisterCustomOpsLibrary_V2(api)(options, words[2]));
  OrtSession* session = nullptr;
  check(api, CreateSession(api)(env, words[3], options, &session));

  std::vector<Input> inputs;
  int at = 4;
  for (; at < count && std::strcmp(words[at], "--") != 0; ++at) inputs.push_back(read_input(words[at]));
  std::vector<std::vector<std::string>> outputs;
  for (++at; at < count; ++at) outputs.push_back(split(words[at], ':'));

  OrtMemoryInfo* memory = nullptr;
  check(api, CreateCpuMemoryInfo(api)(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> values;
  for (Input& x : inputs) {
    OrtValue* value = nullptr;
    check(api, CreateTensorWithDataAsOrtValue(api)(memory, x.bytes.data(), x.bytes.size(), x.shape.data(),
                                                   x.shape.size(), x.type, &value));
    values.push_back(value);
    input_names.push_back(x.name.c_str());
  }
  for (const auto& y : outputs) output_names.push_back(y[0].c_str());
  std::vector<OrtValue*> found(outputs.size(), nullptr);
  for (int runs = number("RUNS", 1); runs > 0; --runs)
    check(api, Run(api)(session, nullptr, input_names.data(), values.data(), values.size(), output_names.data(),
                        found.size(), found.data()));
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor y = tensor_of(api, found[i]);
    const int64_t bytes = elements(y.shape) * (y.type == Type::kUint8 ? 1 : y.type == Type::kFloat16 ? 2 : 4);
    std::ofstream(outputs[i][1], std::ios::binary).write(static_cast<const char*>(y.data), bytes);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 5) {
    std::fprintf(stderr, "usage: ort_run ONNXRUNTIME OPERATORS MODEL name:type:shape:file... -- name:file...\n");
    return 2;
  }
  try {
    run(count, words);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
