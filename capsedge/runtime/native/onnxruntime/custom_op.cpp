#include "custom_op.h"

#include <algorithm>

#include "shapes.h"

namespace capsedge::ort {

namespace {

template <typename T, typename One, typename Many>
bool get(const OrtApi* api, const OrtKernelInfo* info, const char* name, std::vector<T>& values, One one, Many many) {
  T value{};
  if (succeeded(api, one(info, name, &value))) {
    values = {value};
    return true;
  }
  size_t size = 0;
  if (!succeeded(api, many(info, name, nullptr, &size))) return false;
  values.resize(size);
  return size == 0 || succeeded(api, many(info, name, values.data(), &size));
}

}  // namespace

ONNXTensorElementDataType CustomOp::type(char letter) const {
  switch (letter) {
    case 'f': return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case 'i': return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case 'b': return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case 'B': return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    default: return floating;
  }
}

bool NodeAttributes::find(const char* name, std::vector<int64_t>& values) const {
  return get(api_, info_, name, values, KernelInfoGetAttribute_int64(api_), KernelInfoGetAttributeArray_int64(api_));
}
bool NodeAttributes::find(const char* name, std::vector<float>& values) const {
  return get(api_, info_, name, values, KernelInfoGetAttribute_float(api_), KernelInfoGetAttributeArray_float(api_));
}

CustomOp describe(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating) {
  CustomOp op{};
  op.version = kOrtApiVersion;
  op.api = api;
  op.spec = &spec;
  op.name = number == 1 ? spec.name : spec.name + ("_" + std::to_string(number));
  op.floating = floating;
  op.GetName = [](const OrtCustomOp* o) { return self(o).name.c_str(); };
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
  op.InferOutputShapeFn = [](const OrtCustomOp* o, OrtShapeInferContext* context) {
    return infer_shapes(self(o).api, *self(o).spec, context);
  };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  return op;
}

NodeInputs read_inputs(const OrtApi* api, const OperatorSpec& spec, const OrtKernelContext* context) {
  NodeInputs inputs;
  size_t given = 0;  // optional inputs may be missing at the end
  check(api, KernelContext_GetInputCount(api)(context, &given));
  for (size_t i = 0; i < std::min(given, spec.inputs.size()); ++i) {
    const OrtValue* value = nullptr;
    check(api, KernelContext_GetInput(api)(context, i, &value));
    if (value == nullptr && spec.inputs[i].optional && i + 1 == given) break;
    if (value == nullptr)
      throw Error(std::string(spec.name) + ": input " + std::to_string(i) + " is left out: give zeros for none");
    if (i == 0) inputs.first = value;
    inputs.tensors.push_back(tensor_of(api, value));
    inputs.shapes.push_back(inputs.tensors.back().shape);
  }
  return inputs;
}

std::vector<void*> make_outputs(const OrtApi* api, const OperatorSpec& spec, OrtKernelContext* context,
                                const std::vector<Shape>& shapes) {
  std::vector<void*> addresses;
  for (size_t i = 0; i < shapes.size(); ++i) {
    OrtValue* value = nullptr;
    check(api, KernelContext_GetOutput(api)(context, i, shapes[i].data(), shapes[i].size(), &value));
    void* data = nullptr;
    if (value) check(api, GetTensorMutableData(api)(value, &data));
    if (data == nullptr && elements(shapes[i]) > 0)
      throw Error(std::string(spec.name) + ": output " + std::to_string(i) + " is left out");
    addresses.push_back(data);
  }
  return addresses;
}

}  // namespace capsedge::ort
