// A stand-in for libnvinfer: what libcapsedge calls of TensorRT's runtime, with ONNX Runtime behind it. An engine is
// "PLAN" and an ONNX file with the optimization profile among its properties, as in fake.py; a context runs it, through libcapsedge's own ONNX backend, on the addresses
// that it is told, which are host memory here (cudart.c), when the stream comes to it. What TensorRT calls undefined (a
// graph whose context was changed, two contexts in the same scratch memory at once) computes nothing and is counted.
// Loaded with CAPSEDGE_MOCK_RUNTIME naming libcapsedge and CAPSEDGE_CUDART the stand-in for libcudart.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "NvInferRuntime.h"
#include "capsedge.h"

#ifndef MOCK_MAJOR
#define MOCK_MAJOR NV_TENSORRT_MAJOR
#endif

using namespace nvinfer1;

namespace {

void* library_of(const char* variable) {
  void* const library = dlopen(std::getenv(variable), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  return library;
}

template <typename F>
F* function(const char* variable, const char* name) {
  F* const found = reinterpret_cast<F*>(dlsym(library_of(variable), name));
  if (found == nullptr) std::abort();
  return found;
}
#define CAPSEDGE(name) function<decltype(name)>("CAPSEDGE_MOCK_RUNTIME", #name)

std::mutex mutex;
std::set<std::string> wrong;  // what a test makes go wrong
std::map<std::string, int> counts;
bool plugins = false;

bool is_wrong(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  return wrong.count(what) > 0;
}
void count(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts[what];
}

// What only the real one can tell apart: where an object was made, and whether TensorRT is still there.
bool ended = false;
struct End {
  ~End() { ended = true; }
} const end;

class OnGpu {
 public:
  ~OnGpu() {
    if (ended) std::abort();
    if (current() != device_) count("astray");
  }

 private:
  static int current() {
    int device = -1;
    function<int(int*)>("CAPSEDGE_CUDART", "cudaGetDevice")(&device);
    return device;
  }
  const int device_ = current();
};

struct Model {
  capsedge_session* session = nullptr;
  std::vector<capsedge_port> inputs, outputs;

  ~Model() { CAPSEDGE(capsedge_status_release)(CAPSEDGE(capsedge_close)(session)); }
  const capsedge_port* find(const std::string& name) const {
    for (const auto* ports : {&inputs, &outputs})
      for (const capsedge_port& port : *ports)
        if (name == port.name) return &port;
    return nullptr;
  }
};

struct Bound {
  std::map<std::string, Dims> shapes;  // of the outputs, once they were inferred
  std::map<std::string, void*> addresses;
  void* scratch = nullptr;
  // Of the context: how often it was changed; -1: it is gone.
  std::shared_ptr<std::atomic<int>> changes = std::make_shared<std::atomic<int>>(0);
  int as_of = 0;  // when this was recorded
};

constexpr int64_t kScratch = 4096;
std::set<void*> busy;  // scratch memory that something computes in

capsedge_tensor tensor(const capsedge_port& port, const Dims& dims, void* data) {
  capsedge_tensor made{};
  made.name = port.name;
  made.data = data;
  made.type = port.type;
  made.rank = port.rank;
  made.bytes = port.type == CAPSEDGE_FLOAT16 ? 2 : port.type == CAPSEDGE_INT64 ? 8 : port.type == CAPSEDGE_BOOL ? 1 : 4;
  for (int32_t i = 0; i < port.rank; ++i) made.bytes *= static_cast<size_t>(made.shape[i] = dims.d[i]);
  return made;
}

int64_t batch_of(const Model& model, const Bound& bound) {
  for (const capsedge_port& port : model.inputs)
    if (port.rank > 0 && port.shape[0] < 0) return bound.shapes.at(port.name).d[0];
  return 1;
}

// The shape of an output where only the batch is free; others are taken from a run on zeros.
void infer(const Model& model, Bound& bound) {
  bool batch_only = true;
  for (const capsedge_port& port : model.inputs)
    for (int32_t i = 1; i < port.rank; ++i) batch_only = batch_only && port.shape[i] >= 0;
  for (const capsedge_port& port : model.outputs) {
    Dims& dims = bound.shapes[port.name];
    dims.nbDims = port.rank;
    for (int32_t i = 0; i < port.rank; ++i) dims.d[i] = port.shape[i] < 0 ? batch_of(model, bound) : port.shape[i];
  }
  if (batch_only) return;
  std::vector<capsedge_tensor> inputs, outputs;
  std::vector<std::vector<char>> memory;
  for (const capsedge_port& port : model.inputs) {
    inputs.push_back(tensor(port, bound.shapes.at(port.name), nullptr));
    memory.emplace_back(inputs.back().bytes);
    inputs.back().data = memory.back().data();
  }
  for (const capsedge_port& port : model.outputs) {
    memory.emplace_back(size_t{1} << 20);
    capsedge_tensor one{};
    one.name = port.name, one.data = memory.back().data(), one.bytes = memory.back().size();
    outputs.push_back(one);
  }
  if (CAPSEDGE(capsedge_run)(model.session, inputs.data(), inputs.size(), outputs.data(), outputs.size())) std::abort();
  for (const capsedge_tensor& one : outputs) std::copy_n(one.shape, one.rank, bound.shapes[one.name].d);
}

// The least and the largest sizes of an input; none if its shape is fixed.
std::vector<int64_t> profile_of(const Model& model, const std::string& input) {
  const char* text = nullptr;
  CAPSEDGE(capsedge_status_release)(CAPSEDGE(capsedge_property)(model.session, ("profile." + input).c_str(), &text));
  std::istringstream words(text ? text : "");
  std::vector<int64_t> sizes;
  for (int64_t size; words >> size;) sizes.push_back(size);
  return sizes;
}

bool compute(const Model& model, const Bound& bound) {
  std::vector<capsedge_tensor> inputs, outputs;
  for (const capsedge_port& port : model.inputs)
    inputs.push_back(tensor(port, bound.shapes.at(port.name), bound.addresses.at(port.name)));
  for (const capsedge_port& port : model.outputs)
    outputs.push_back(tensor(port, bound.shapes.at(port.name), bound.addresses.at(port.name)));
  capsedge_status* const status =
      CAPSEDGE(capsedge_run)(model.session, inputs.data(), inputs.size(), outputs.data(), outputs.size());
  CAPSEDGE(capsedge_status_release)(status);
  return status == nullptr;
}

bool run(const Model& model, const Bound& bound) {
  bool defined = *bound.changes == bound.as_of;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    defined = busy.insert(bound.scratch).second && defined;
  }
  if (!defined) count("undefined");
  const bool done = defined && compute(model, bound);
  const std::lock_guard<std::mutex> lock(mutex);
  busy.erase(bound.scratch);
  return done;
}

using Recorded = std::pair<std::shared_ptr<Model>, Bound>;

void run_queued(intptr_t recorded) {
  const std::unique_ptr<Recorded> one(reinterpret_cast<Recorded*>(recorded));
  run(*one->first, one->second);
}

// Never destroyed: at the end of a process there may be no libcapsedge to close models with.
auto& graphs = *new std::map<intptr_t, Recorded>();

void launch(intptr_t graph) {
  Recorded recorded;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    recorded = graphs.at(graph);
    ++counts["launched"];
  }
  run(*recorded.first, recorded.second);
}

class Context : public IExecutionContext {
 public:
  Context(std::shared_ptr<Model> model, bool own_memory) : model_(std::move(model)) {
    if (own_memory) bound_.scratch = this;
    count("contexts");
    count("contexts made");
  }
  ~Context() noexcept override {
    *bound_.changes = -1;
    const std::lock_guard<std::mutex> lock(mutex);
    --counts["contexts"];
  }
  bool setInputShape(const char* name, const Dims& dims) noexcept override {
    const std::vector<int64_t> profile = profile_of(*model_, name);
    for (size_t i = 0; 2 * i < profile.size(); ++i)
      if (dims.d[i] < profile[i] || dims.d[i] > profile[profile.size() / 2 + i]) return false;
    bound_.shapes[name] = dims;
    ++*bound_.changes;
    return !is_wrong("shape");
  }
  bool setTensorAddress(const char* name, void* data) noexcept override {
    bound_.addresses[name] = data;
    ++*bound_.changes;
    return data != nullptr;
  }
  void setDeviceMemoryV2(void* memory, int64_t size) noexcept override {
    bound_.scratch = size < kScratch ? nullptr : memory;
    ++*bound_.changes;
  }
  int32_t inferShapes(int32_t, const char** names) noexcept override {
    if (is_wrong("infer")) return names[0] = "x", 1;
    infer(*model_, bound_);
    return 0;
  }
  Dims getTensorShape(const char* name) const noexcept override { return bound_.shapes.at(name); }
  bool enqueueV3(cudaStream_t stream) noexcept override {
    if (reinterpret_cast<uintptr_t>(stream) <= 2 || bound_.scratch == nullptr || is_wrong("execute")) return false;
    // As the real one, which computes all of them.
    for (const capsedge_port& port : model_->outputs)
      if (bound_.addresses.count(port.name) == 0) return false;
    bound_.as_of = *bound_.changes;
    if (function<int()>("CAPSEDGE_CUDART", "fake_capturing")()) {
      const std::lock_guard<std::mutex> lock(mutex);
      graphs[function<intptr_t()>("CAPSEDGE_CUDART", "fake_captured")()] = {model_, bound_};
      ++counts["captured"];
      return true;
    }
    count("plain");
    auto recorded = std::make_unique<Recorded>(model_, bound_);
    return function<int(void*, void (*)(intptr_t), intptr_t)>("CAPSEDGE_CUDART", "fake_enqueue")(
               stream, run_queued, reinterpret_cast<intptr_t>(recorded.release())) == 0;
  }

 private:
  const std::shared_ptr<Model> model_;
  Bound bound_;
  const OnGpu on_;
};

class Engine : public ICudaEngine {
 public:
  explicit Engine(std::shared_ptr<Model> model) : model_(std::move(model)) { count("engines"); }
  ~Engine() noexcept override {
    const std::lock_guard<std::mutex> lock(mutex);
    --counts["engines"];
  }
  int32_t getNbIOTensors() const noexcept override {
    return static_cast<int32_t>(model_->inputs.size() + model_->outputs.size());
  }
  const char* getIOTensorName(int32_t index) const noexcept override {
    const auto i = static_cast<size_t>(index), inputs = model_->inputs.size();
    return i < inputs ? model_->inputs[i].name : model_->outputs[i - inputs].name;
  }
  DataType getTensorDataType(const char* name) const noexcept override {
    switch (model_->find(name)->type) {
      case CAPSEDGE_FLOAT16: return DataType::kHALF;
      case CAPSEDGE_INT64: return DataType::kINT64;
      case CAPSEDGE_BOOL: return DataType::kBOOL;
      default: return DataType::kFLOAT;
    }
  }
  Dims getTensorShape(const char* name) const noexcept override {
    const capsedge_port& port = *model_->find(name);
    Dims dims{port.rank, {}};
    for (int32_t i = 0; i < port.rank; ++i) dims.d[i] = is_wrong("free") ? -1 : port.shape[i];
    return dims;
  }
  TensorIOMode getTensorIOMode(const char* name) const noexcept override {
    for (const capsedge_port& port : model_->inputs)
      if (std::strcmp(port.name, name) == 0) return TensorIOMode::kINPUT;
    return TensorIOMode::kOUTPUT;
  }
  TensorLocation getTensorLocation(const char*) const noexcept override {
    return is_wrong("host") ? TensorLocation::kHOST : TensorLocation::kDEVICE;
  }
  int64_t getDeviceMemorySizeV2() const noexcept override { return kScratch; }
  IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy strategy) noexcept override {
    if (is_wrong("context")) return nullptr;
    return new Context(model_, strategy == ExecutionContextAllocationStrategy::kSTATIC);
  }

 private:
  const std::shared_ptr<Model> model_;
  const OnGpu on_;
};

class Registry : public IPluginRegistry {
 public:
  ILogger* logger = nullptr;
  bool registerCreator(IPluginCreatorInterface&, const char*) noexcept override { return false; }
  PluginLibraryHandle loadLibrary(const char*) noexcept override {
    plugins = !is_wrong("plugin");
    count("plugins");
    if (plugins) return this;
    logger->log(ILogger::Severity::kERROR, "SymbolAddress for getCreators could not be loaded");
    return nullptr;
  }
  IPluginCreatorInterface* getCreator(const char* name, const char*, const char* space) noexcept override {
    static IPluginCreatorInterface creator;
    if (plugins && *space == '\0') return &creator;
    logger->log(ILogger::Severity::kERROR, (std::string("Cannot find plugin: ") + name).c_str());
    return nullptr;
  }
};

class Runtime : public IRuntime {
 public:
  explicit Runtime(ILogger& logger) : logger_(logger) {}
  ICudaEngine* deserializeCudaEngine(const void* blob, size_t size) noexcept override {
    const auto* const bytes = static_cast<const char*>(blob);
    if (size < 4 || std::memcmp(bytes, "PLAN", 4) != 0) {
      logger_.log(ILogger::Severity::kERROR, "magic tag does not match");
      return nullptr;
    }
    auto model = std::make_shared<Model>();
    capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
    options.threads = 1;
    if (capsedge_status* status = CAPSEDGE(capsedge_open_bytes)(bytes + 4, size - 4, &options, &model->session)) {
      logger_.log(ILogger::Severity::kERROR, CAPSEDGE(capsedge_status_message)(status));
      CAPSEDGE(capsedge_status_release)(status);
      return nullptr;
    }
    read(CAPSEDGE(capsedge_input), *model, model->inputs);
    read(CAPSEDGE(capsedge_output), *model, model->outputs);
    function<void(void (*)(intptr_t))>("CAPSEDGE_CUDART", "fake_on_launch")(launch);
    return new Engine(std::move(model));
  }
  IPluginRegistry& getPluginRegistry() noexcept override {
    static Registry registry;
    registry.logger = &logger_;
    return registry;
  }

 private:
  static void read(decltype(capsedge_input)* get, const Model& model, std::vector<capsedge_port>& ports) {
    for (size_t i = 0;; ++i) {
      capsedge_port port = CAPSEDGE_PORT_INIT;
      capsedge_status* const status = get(model.session, i, &port);
      CAPSEDGE(capsedge_status_release)(status);
      if (status != nullptr) return;
      ports.push_back(port);
    }
  }

  ILogger& logger_;
  const OnGpu on_;
};

}  // namespace

extern "C" {
int32_t getInferLibMajorVersion() noexcept { return MOCK_MAJOR; }
int32_t getInferLibMinorVersion() noexcept { return 3; }
int32_t getInferLibPatchVersion() noexcept { return 0; }
int32_t getInferLibBuildVersion() noexcept { return 26; }
void* createInferRuntime_INTERNAL(void* logger, int32_t compiled) noexcept {
  if (compiled != NV_TENSORRT_VERSION || is_wrong("runtime")) return nullptr;
  return new Runtime(*static_cast<ILogger*>(logger));
}

void mock_set(const char* what, int yes) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (yes) wrong.insert(what);
  else wrong.erase(what);
}
int mock_count(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex);
  return counts[what];
}
}
