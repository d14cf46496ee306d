// The custom-operator library: `session_options.register_custom_ops_library(path)` calls RegisterCustomOps.
// Exceptions never leave it; a caller's mistakes are reported in statuses.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>

#include "call.h"
#include "instances.h"
#include "operators/operator.h"
#include "shapes.h"
#include "simd/dispatch.h"

namespace capsedge::ort {

namespace {

// The OrtCustomOp that ONNX Runtime sees, followed by our own fields.
struct CustomOp : OrtCustomOp {
  const OrtApi* api;
  const OperatorSpec* spec;
  std::string name;                    // the operator's, or that of its second, third, ... function body
  ONNXTensorElementDataType floating;  // what T is

  ONNXTensorElementDataType type(char letter) const {
    switch (letter) {
      case 'f': return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
      case 'i': return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
      case 'b': return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
      case 'B': return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
      default: return floating;
    }
  }
};
const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

class NodeAttributes : public AttributeSource {
 public:
  NodeAttributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  bool find(const char* name, std::vector<int64_t>& values) const override {
    return get(name, values, KernelInfoGetAttribute_int64(api_), KernelInfoGetAttributeArray_int64(api_));
  }
  bool find(const char* name, std::vector<float>& values) const override {
    return get(name, values, KernelInfoGetAttribute_float(api_), KernelInfoGetAttributeArray_float(api_));
  }

 private:
  template <typename T, typename One, typename Many>
  bool get(const char* name, std::vector<T>& values, One one, Many many) const {
    T value{};
    if (succeeded(api_, one(info_, name, &value))) {
      values = {value};
      return true;
    }
    size_t size = 0;
    if (!succeeded(api_, many(info_, name, nullptr, &size))) return false;
    values.resize(size);
    return size == 0 || succeeded(api_, many(info_, name, values.data(), &size));
  }

  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

struct Kernel {
  const OrtApi* api;
  const OperatorSpec* spec;
  std::unique_ptr<Operator> op;
};

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const OperatorSpec& spec = *self(op).spec;
    auto made = std::make_unique<Kernel>(
        Kernel{api, &spec, make_operator(spec.name, NodeAttributes(api, info), choose_level())});
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      int is_constant = 0;
      const OrtValue* value = nullptr;
      check(api, KernelInfoGetConstantInput_tensor(api)(info, i, &is_constant, &value));
      if (is_constant && value) made->op->constant(i, tensor_of(api, value));
    }
    *kernel = made.release();
  });
}

OrtStatus* compute(void* raw, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(raw);
  const OrtApi* api = kernel.api;
  return guarded(api, [&] {
    std::vector<Tensor> inputs;
    std::vector<Shape> shapes;
    size_t given = 0;  // optional inputs may be missing at the end
    check(api, KernelContext_GetInputCount(api)(context, &given));
    for (size_t i = 0; i < std::min(given, kernel.spec->inputs.size()); ++i) {
      const OrtValue* value = nullptr;
      check(api, KernelContext_GetInput(api)(context, i, &value));
      if (value == nullptr && kernel.spec->inputs[i].optional && i + 1 == given) break;
      if (value == nullptr)
        throw Error(std::string(kernel.spec->name) + ": input " + std::to_string(i) +
                    " is left out: give zeros for none");
      inputs.push_back(tensor_of(api, value));
      shapes.push_back(inputs.back().shape);
    }
    const std::vector<Shape> wanted = kernel.op->outputs(shapes);
    std::vector<Output> outputs;
    for (size_t i = 0; i < wanted.size(); ++i) {
      OrtValue* value = nullptr;
      check(api, KernelContext_GetOutput(api)(context, i, wanted[i].data(), wanted[i].size(), &value));
      void* data = nullptr;
      if (value) check(api, GetTensorMutableData(api)(value, &data));
      if (data == nullptr && elements(wanted[i]) > 0)
        throw Error(std::string(kernel.spec->name) + ": output " + std::to_string(i) + " is left out");
      outputs.push_back({data, wanted[i], inputs[0].type});
    }
    struct Pool {
      const OrtApi* api;
      OrtKernelContext* context;
    } pool{api, context};
    const Threads threads{[](void* raw_pool, size_t count, void (*body)(void*, size_t), void* user) {
                            const Pool& p = *static_cast<Pool*>(raw_pool);
                            check(p.api, KernelContext_ParallelFor(p.api)(p.context, body, count, 0, user));
                          },
                          &pool};
    kernel.op->run(inputs, outputs, threads);
  });
}

CustomOp describe(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating) {
  CustomOp op{};
  op.version = kOrtApiVersion;
  op.api = api;
  op.spec = &spec;
  op.name = number == 1 ? spec.name : spec.name + ("_" + std::to_string(number));
  op.floating = floating;
  op.GetName = [](const OrtCustomOp* o) { return self(o).name.c_str(); };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputType = [](const OrtCustomOp* o, size_t i) { return self(o).type(self(o).spec->inputs[i].type); };
  op.GetInputTypeCount = [](const OrtCustomOp* o) { return self(o).spec->inputs.size(); };
  op.GetOutputType = [](const OrtCustomOp* o, size_t i) { return self(o).type(self(o).spec->outputs[i].type); };
  op.GetOutputTypeCount = [](const OrtCustomOp* o) { return self(o).spec->outputs.size(); };
  op.GetInputCharacteristic = [](const OrtCustomOp* o, size_t i) {
    return self(o).spec->inputs[i].optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.CreateKernelV2 = create_kernel;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.InferOutputShapeFn = [](const OrtCustomOp* o, OrtShapeInferContext* context) {
    return infer_shapes(self(o).api, *self(o).spec, context);
  };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  return op;
}

// How many names of each operator get a kernel: `DynamicRouting` to `DynamicRouting_16`. A file gives every distinct
// function body a name of its own (capsedge/spec/operators.py); a name without a kernel runs as its body.
using Instances = std::array<size_t, kOperatorCount>;
constexpr size_t kUsual = 16;        // if the session's options do not state a number
constexpr size_t kMostDomains = 64;  // kept for different files; domains are never released

// `DynamicRouting:2,Squash:1` in the session's options: what the file to be loaded has.
Instances families_of(const OrtApi* api, const OrtSessionOptions* options) {
  Instances instances;
  int given = 0;
  check(api, HasSessionConfigEntry(api)(options, kInstancesKey, &given));
  if (!given) {
    instances.fill(kUsual);
    return instances;
  }
  size_t size = 0;
  check(api, GetSessionConfigEntry(api)(options, kInstancesKey, nullptr, &size));
  std::string text(size, '\0');
  check(api, GetSessionConfigEntry(api)(options, kInstancesKey, text.data(), &size));
  instances.fill(1);
  std::istringstream entries(text.c_str());
  for (std::string entry; std::getline(entries, entry, ',');) {
    const size_t colon = std::min(entry.find(':'), entry.size());
    const OperatorSpec* const named = find_operator(entry.substr(0, colon));
    const unsigned long count = std::strtoul(entry.c_str() + std::min(colon + 1, entry.size()), nullptr, 10);
    if (named == nullptr || count < 1 || count > kMaxInstances)
      throw Error("capsedge: '" + entry + "' in " + kInstancesKey + " is not an operator and 1 to " +
                  std::to_string(kMaxInstances) + " names");
    instances[static_cast<size_t>(named - kOperators.data())] = count;
  }
  return instances;
}

// Operators and domains outlive every session, since sessions hold pointers to them: they are made once and kept.
class Registry {
 public:
  explicit Registry(const OrtApi* api) : api_(api) {}

  OrtCustomOpDomain* domain(Instances instances) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (domains_.size() >= kMostDomains && domains_.count(instances) == 0) instances.fill(kUsual);
    OrtCustomOpDomain*& domain = domains_[instances];
    if (domain == nullptr) {
      OrtCustomOpDomain* made = nullptr;
      check(api_, CreateCustomOpDomain(api_)(kDomain, &made));
      for (size_t i = 0; i < instances.size(); ++i)
        for (size_t number = 1; number <= instances[i]; ++number) add(made, i, number);
      domain = made;
    }
    return domain;
  }

 private:
  // A variant for each T, which ONNX Runtime merges under one name.
  void add(OrtCustomOpDomain* domain, size_t place, size_t number) {
    const OperatorSpec& spec = kOperators[place];
    const bool has_floating =
        std::any_of(spec.inputs.begin(), spec.inputs.end(), [](const Parameter& input) { return input.type == 'T'; });
    for (const auto type : {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16}) {
      if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 && !has_floating) continue;
      const auto key = std::make_tuple(place, number, type);
      auto found = ops_.find(key);
      if (found == ops_.end()) found = ops_.emplace(key, describe(api_, spec, number, type)).first;
      check(api_, CustomOpDomain_Add(api_)(domain, &found->second));
    }
  }

  const OrtApi* api_;
  std::mutex mutex_;
  std::map<std::tuple<size_t, size_t, ONNXTensorElementDataType>, CustomOp> ops_;
  std::map<Instances, OrtCustomOpDomain*> domains_;
};

OrtStatus* too_old(const OrtApiBase* base) {
  // CreateStatus has the same place in every older table.
  for (uint32_t version = kOrtApiVersion - 1; version > 0; --version)
    if (const OrtApi* api = base->GetApi(version)) {
      const std::string message = "capsedge: ONNX Runtime " + std::string(base->GetVersionString()) +
                                  " is too old for the operator library: 1." +
                                  std::to_string(kOrtApiVersion) + " or newer is needed (pip install --upgrade onnxruntime)";
      return CreateStatus(api)(ORT_NOT_IMPLEMENTED, message.c_str());
    }
  return nullptr;
}

// Operator and number of `DynamicRouting_2`; null for a type that is no operator.
std::pair<const OperatorSpec*, size_t> split(const std::string& type) {
  const size_t line = type.find('_');
  const OperatorSpec* const spec = find_operator(type.substr(0, line));
  if (spec == nullptr) return {nullptr, 0};
  if (line == std::string::npos) return {spec, 1};
  const std::string digits = type.substr(line + 1);
  const bool plain = !digits.empty() && digits.size() <= 6 && digits[0] != '0' && digits != "1" &&
                     digits.find_first_not_of("0123456789") == std::string::npos;
  return plain ? std::make_pair(spec, static_cast<size_t>(std::stoul(digits)))
               : std::pair<const OperatorSpec*, size_t>{nullptr, 0};
}

}  // namespace

std::string operator_of(const std::string& type) {
  const OperatorSpec* const spec = split(type).first;
  return spec ? spec->name : type;
}

std::string instances(const std::vector<std::string>& types) {
  std::map<std::string, size_t> most;
  for (const std::string& type : types) {
    const auto [spec, number] = split(type);
    if (spec == nullptr) continue;
    size_t& count = most[spec->name];
    count = std::max(count, std::min(number, kMaxInstances));
  }
  std::string text;
  for (const auto& [name, count] : most) text += (text.empty() ? "" : ",") + name + ":" + std::to_string(count);
  return text;
}

}  // namespace capsedge::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace capsedge::ort;
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) return too_old(base);
  return guarded(api, [&] {
    static Registry& registry = *new Registry(api);
    check(api, AddCustomOpDomain(api)(options, registry.domain(families_of(api, options))));
  });
}
