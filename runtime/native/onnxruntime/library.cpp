// The custom-operator library: `session_options.register_custom_ops_library(path)` calls RegisterCustomOps.
// Exceptions never leave it; what a caller did wrong comes back as a status with a sentence.

#include <cstring>
#include <string>

#include "call.h"
#include "dispatch.h"
#include "operator.h"
#include "shapes.h"

namespace capsedge::ort {

namespace {

// A letter for the type of each input and output: T float or float16, the same for all T of a node; f float, i int32,
// b int8, B uint8. Outputs have the type of the first input.
struct Signature {
  const char* name;
  const char* inputs;
  const char* outputs;
};
constexpr Signature kSignatures[] = {
    {"Squash", "T", "T"},
    {"DynamicRouting", "TTTT", "T"},
    {"EMRouting", "TTTTT", "TT"},
    {"AttentionRouting", "TTTTT", "T"},
    {"UniformRouting", "TTTT", "T"},
    {"PoseNormalization", "TTT", "T"},
    {"QuantizedDynamicRouting", "TbfTT", "T"},
    {"QuantizedEMRouting", "TTbfTT", "TT"},
    {"QuantizedAttentionRouting", "TTbfTT", "T"},
    {"QuantizedUniformRouting", "TbfTT", "T"},
    {"QuantizedConv", "BfBbfbfBi", "B"}};

// What ONNX Runtime sees as OrtCustomOp has our own fields behind it.
struct CustomOp : OrtCustomOp {
  const OrtApi* api;
  const Signature* signature;
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

class NodeAttributes : public Attributes {
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
  const Signature* signature;
  std::unique_ptr<Operator> op;
};

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const Signature& signature = *self(op).signature;
    auto made = std::make_unique<Kernel>(
        Kernel{api, &signature, make_operator(signature.name, NodeAttributes(api, info), choose_level())});
    for (size_t i = 0; i < std::strlen(signature.inputs); ++i) {
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
    for (size_t i = 0; i < std::strlen(kernel.signature->inputs); ++i) {
      const OrtValue* value = nullptr;
      check(api, KernelContext_GetInput(api)(context, i, &value));
      if (value == nullptr)
        throw Error(std::string(kernel.signature->name) + ": input " + std::to_string(i) +
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
        throw Error(std::string(kernel.signature->name) + ": output " + std::to_string(i) + " is left out");
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

CustomOp describe(const OrtApi* api, const Signature& signature, ONNXTensorElementDataType floating) {
  CustomOp op{};
  op.version = kOrtApiVersion;
  op.api = api;
  op.signature = &signature;
  op.floating = floating;
  op.GetName = [](const OrtCustomOp* o) { return self(o).signature->name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputType = [](const OrtCustomOp* o, size_t i) { return self(o).type(self(o).signature->inputs[i]); };
  op.GetInputTypeCount = [](const OrtCustomOp* o) { return std::strlen(self(o).signature->inputs); };
  op.GetOutputType = [](const OrtCustomOp* o, size_t i) { return self(o).type(self(o).signature->outputs[i]); };
  op.GetOutputTypeCount = [](const OrtCustomOp* o) { return std::strlen(self(o).signature->outputs); };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
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
    return infer_shapes(self(o).api, self(o).signature->name, context);
  };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  return op;
}

// A variant for each T, which ONNX Runtime merges under one name. They must outlive every session.
const std::vector<CustomOp>& custom_ops(const OrtApi* api) {
  static const auto ops = [api] {
    std::vector<CustomOp> all;
    for (const Signature& signature : kSignatures) {
      all.push_back(describe(api, signature, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
      if (std::strchr(signature.inputs, 'T'))
        all.push_back(describe(api, signature, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16));
    }
    return all;
  }();
  return ops;
}

// One for all sessions, never released: sessions hold pointers into it for as long as they live.
OrtCustomOpDomain* domain_of(const OrtApi* api) {
  static OrtCustomOpDomain* const domain = [api] {
    OrtCustomOpDomain* made = nullptr;
    check(api, CreateCustomOpDomain(api)("capsedge", &made));
    for (const CustomOp& op : custom_ops(api)) check(api, CustomOpDomain_Add(api)(made, &op));
    return made;
  }();
  return domain;
}

OrtStatus* too_old(const OrtApiBase* base) {
  // Any older table has CreateStatus in the same place.
  for (uint32_t version = kOrtApiVersion - 1; version > 0; --version)
    if (const OrtApi* api = base->GetApi(version)) {
      const std::string message = "capsedge: ONNX Runtime " + std::string(base->GetVersionString()) +
                                  " is too old for the operator library: 1.19 or newer is needed "
                                  "(pip install --upgrade onnxruntime)";
      return CreateStatus(api)(ORT_NOT_IMPLEMENTED, message.c_str());
    }
  return nullptr;
}

}  // namespace

}  // namespace capsedge::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace capsedge::ort;
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) return too_old(base);
  return guarded(api, [&] {
    check(api, AddCustomOpDomain(api)(options, domain_of(api)));
  });
}
