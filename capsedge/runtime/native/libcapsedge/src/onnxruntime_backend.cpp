#include "onnxruntime_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "failure.h"
#include "instances.h"
#include "onnx_file.h"

namespace capsedge::libcapsedge {

namespace {

using namespace capsedge::ort;

// The values of one run, released together.
class Values {
 public:
  explicit Values(const OrtApi* api) : api_(api) {}
  ~Values() {
    for (size_t i = 0; i < count_; ++i)
      if (all_[i]) ReleaseValue(api_)(all_[i]);
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  OrtValue*& add() { return all_[count_++] = nullptr; }
  OrtValue** data() { return all_; }

 private:
  const OrtApi* api_;
  OrtValue* all_[CAPSEDGE_MAX_TENSORS];
  size_t count_ = 0;
};

}  // namespace

OnnxRuntimeBackend::OnnxRuntimeBackend(std::string_view model, const std::string& name, const OpenOnnx& how)
    : runtime_(onnxruntime(how.library)),
      api_(runtime_.api),
      name_(name),
      session_(open_session(runtime_, model, name, how)),
      run_options_(run_options(api_)),
      on_gpu_(how.on_gpu()) {
  read_ports(SessionGetInputCount(api_), SessionGetInputTypeInfo(api_), SessionGetInputName(api_), inputs_);
  read_ports(SessionGetOutputCount(api_), SessionGetOutputTypeInfo(api_), SessionGetOutputName(api_), outputs_);
}

void OnnxRuntimeBackend::run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const {
  Values given(api_), found(api_);
  const char* input_names[CAPSEDGE_MAX_TENSORS];
  const char* output_names[CAPSEDGE_MAX_TENSORS];
  for (size_t i = 0; i < input_count; ++i) {
    input_names[i] = inputs_[inputs[i].port].name.c_str();
    make(inputs[i], runtime_.memory, given.add());
  }
  for (size_t i = 0; i < output_count; ++i) {
    output_names[i] = outputs_[outputs[i].port].name.c_str();
    OrtValue*& value = found.add();
    if (outputs[i].type != CAPSEDGE_OTHER) make(outputs[i], runtime_.memory, value);
  }
  OrtStatus* const status = Run(api_)(session_.get(), run_options_.get(), input_names, given.data(), input_count, output_names,
                                      output_count, found.data());
  if (status != nullptr) {
    const std::string message = GetErrorMessage(api_)(status);
    ReleaseStatus(api_)(status);
    fail(message);
  }
  for (size_t i = 0; i < output_count; ++i) {
    if (outputs[i].type != CAPSEDGE_OTHER) continue;
    shape(found.data()[i], outputs[i]);
    void* data = nullptr;
    check(api_, GetTensorMutableData(api_)(found.data()[i], &data));
    if (outputs[i].bytes > 0) std::memcpy(outputs[i].data, data, outputs[i].bytes);
  }
}

void OnnxRuntimeBackend::make(const Value& value, const OrtMemoryInfo* memory, OrtValue*& made) const {
  check(api_, CreateTensorWithDataAsOrtValue(api_)(memory, value.data, value.bytes, value.shape, static_cast<size_t>(value.rank),
                                                   static_cast<ONNXTensorElementDataType>(value.type), &made));
}

void OnnxRuntimeBackend::shape(OrtValue* value, Value& to) const {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api_, GetTensorTypeAndShape(api_)(value, &raw));
  const Info info(raw, {api_});
  ONNXTensorElementDataType type{};
  size_t rank = 0;
  check(api_, GetTensorElementType(api_)(raw, &type));
  check(api_, GetDimensionsCount(api_)(raw, &rank));
  const std::string& name = outputs_[to.port].name;
  if (rank > CAPSEDGE_MAX_RANK || element_bytes(type) == 0)
    throw Failure(CAPSEDGE_UNSUPPORTED, "Output '" + name + "' cannot be returned.",
                  "It has " + std::to_string(rank) + " dimensions and the type " + type_name(type) + ".", "");
  int64_t sizes[CAPSEDGE_MAX_RANK] = {};
  check(api_, GetDimensions(api_)(raw, sizes, rank));
  give_shape(to, name, type, sizes, rank);
}

void OnnxRuntimeBackend::fail(const std::string& message) const {
  const std::string why = first_line(message);
  if (why.find("indices element out of data bounds") != std::string::npos)
    fail_usage("An input has an index that its table does not have.", why,
               "Give unknown items an index that the network was trained with, such as that of its padding.");
  if (on_gpu_ && is_short_of_memory(message)) fail_without_memory("The GPU has too little memory to run " + name_ + ".", message);
  throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime failed while running " + name_ + ".", why,
                "If the model was made for these shapes, the file is damaged: export it again.");
}

void OnnxRuntimeBackend::read_ports(SessionGetInputCountType count_of, SessionGetInputTypeInfoType info_of,
                                    SessionGetInputNameType name_of, std::vector<Port>& ports) const {
  OrtAllocator* allocator = nullptr;
  check(api_, GetAllocatorWithDefaultOptions(api_)(&allocator));
  size_t count = 0;
  check(api_, count_of(session_.get(), &count));
  for (size_t i = 0; i < count; ++i) {
    Port port;
    char* name = nullptr;
    check(api_, name_of(session_.get(), i, allocator, &name));
    port.name = name;
    check(api_, AllocatorFree(api_)(allocator, name));
    const auto info = owned<OrtTypeInfo>(api_, ReleaseTypeInfo(api_),
                                         [&](OrtTypeInfo** made) { return info_of(session_.get(), i, made); });
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    check(api_, CastTypeInfoToTensorInfo(api_)(info.get(), &tensor));
    if (tensor != nullptr) {
      ONNXTensorElementDataType type{};
      check(api_, GetTensorElementType(api_)(tensor, &type));
      port.shape = shape_of(api_, tensor);
      if (element_bytes(type) != 0 && port.shape.size() <= CAPSEDGE_MAX_RANK) port.type = type;
    }
    ports.push_back(std::move(port));
  }
}

std::unique_ptr<Backend> open_onnxruntime(std::string_view model, const std::string& name, const OpenOnnx& how) {
  if (how.on_gpu()) return open_onnxruntime_cuda(model, name, how);
  return std::make_unique<OnnxRuntimeBackend>(model, name, how);
}

void check_overloads(const OnnxFile& file, const std::string& name, const OpenOnnx& how) {
  const OnnxRuntime& runtime = onnxruntime(how.library);
  std::vector<std::string> mixed;
  for (const auto& [domain, function] : file.overloaded)
    if (domain != kDomain || std::find(how.nodes.begin(), how.nodes.end(), function) == how.nodes.end()) mixed.push_back(function);
  int major = 0, minor = 0;  // requesting a newer interface would print on stderr
  std::sscanf(runtime.version.c_str(), "%d.%d", &major, &minor);
  if (mixed.empty() || major > 1 || minor >= ort::kOverloadsMinor) return;
  throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime " + runtime.version + " would compute " + name + " wrongly.",
                "The file has several functions named " + joined(mixed) + "; ONNX Runtime before 1." +
                    std::to_string(ort::kOverloadsMinor) + " uses one of them for all.",
                "Export the model again (`capsedge export`), or use a newer ONNX Runtime.");
}

}  // namespace capsedge::libcapsedge
