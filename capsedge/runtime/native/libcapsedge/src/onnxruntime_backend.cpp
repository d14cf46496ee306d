// ONNX Runtime on the CPU, with the fused operators built in.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "backend.h"
#include "call.h"
#include "failure.h"
#include "generated/limits.h"
#include "instances.h"
#include "onnx_file.h"
#include "onnxruntime_library.h"
#include "operators.h"
#if defined(__x86_64__)
#include "simd/features.h"
#endif

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace capsedge::libcapsedge {

namespace {

using namespace capsedge::ort;

constexpr const char* kShared = "Attempt to replace the existing tensor";  // its message for a weight shared by two nodes
constexpr int kFatal = 4;  // its messages are returned in statuses, not printed on standard error

// 0 leaves the choice to ONNX Runtime: one thread per physical core of the machine, even if the process may use
// only some of the cores.
int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  const int allowed = CPU_COUNT(&set);
  return allowed < sysconf(_SC_NPROCESSORS_ONLN) ? allowed : 0;
}

// Whether fast code adds pairs of byte products in 16 bits with saturation, as on x86 processors without VNNI.
bool saturates_products_of_bytes() {
#if defined(__x86_64__)
  const Features here = features_here();
  return !here.avx512vnni && !here.avxvnni;
#else
  return false;
#endif
}

template <typename T>
class Owned {
 public:
  using Release = void (*)(T*);
  Owned(const OrtApi* api, Release (*release)(const OrtApi*)) : release_(release(api)) {}
  ~Owned() {
    if (value_) release_(value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T** out() { return &value_; }
  T* get() const { return value_; }

 private:
  Release release_;
  T* value_ = nullptr;
};

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

// The first line of ONNX Runtime's message.
std::string first_line(const char* message) {
  const std::string text(message);
  const size_t end = std::min<size_t>(text.find('\n'), 300);
  return text.size() > end ? text.substr(0, end) : text;
}

// A file from before bodies had names of their own, on an ONNX Runtime that would confuse its function bodies.
void check_overloads(const OnnxFile& file, const std::string& name, const OnnxRuntime& runtime, bool fused) {
  std::vector<std::string> mixed;
  for (const auto& [domain, function] : file.overloaded)
    if (!fused || domain != kDomain) mixed.push_back(function);
  int major = 0, minor = 0;  // requesting a newer interface would print on stderr
  std::sscanf(runtime.version.c_str(), "%d.%d", &major, &minor);
  if (mixed.empty() || major > 1 || minor >= ort::kOverloadsMinor) return;
  throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime " + runtime.version + " would compute " + name + " wrongly.",
                "The file has several functions named " + joined(mixed) + "; ONNX Runtime before 1." +
                    std::to_string(ort::kOverloadsMinor) + " uses one of them for all.",
                "Export the model again (`capsedge export`), or use a newer ONNX Runtime.");
}

class OnnxRuntimeBackend : public Backend {
 public:
  OnnxRuntimeBackend(std::string_view model, const std::string& name, int32_t threads, const OnnxFile& file, bool fused,
                     const std::string& library)
      : runtime_(onnxruntime(library)),
        api_(runtime_.api),
        name_(name),
        session_(api_, ReleaseSession),
        run_options_(api_, ReleaseRunOptions) {
    Owned<OrtSessionOptions> made(api_, ReleaseSessionOptions);
    check(api_, CreateSessionOptions(api_)(made.out()));
    check(api_, SetSessionLogSeverityLevel(api_)(made.get(), kFatal));
    check(api_, SetIntraOpNumThreads(api_)(made.get(), threads ? threads : available_threads()));
    check(api_, SetInterOpNumThreads(api_)(made.get(), 1));
    // A second line of defence after onnx_file.h: only this format, and an empty folder for external initializers.
    // ONNX Runtime 1.19 knows no such folder, 1.23 lets absolute paths leave it; 1.26 and newer keep to it.
    check(api_, AddSessionConfigEntry(api_)(made.get(), "session.load_model_format", "ONNX"));
    check(api_, AddSessionConfigEntry(api_)(made.get(), "session.model_external_initializers_file_folder_path", "/dev/null"));
    // Large constants are computed only when needed, not while the file is checked.
    check(api_, AddSessionConfigEntry(api_)(made.get(), "optimization.constant_folding_max_output_size_in_bytes",
                                            std::to_string(limits::kRunBytes).c_str()));
    if (saturates_products_of_bytes()) {  // `multiply_exactly` of the Python runtime says what these do
      check(api_, AddSessionConfigEntry(api_)(made.get(), "session.x64quantprecision", "1"));
      check(api_, AddSessionConfigEntry(api_)(made.get(), "session.disable_quant_qdq", "1"));
    }
    if (fused) {
      const std::string instances = ort::instances(file.capsedge_types());
      check(api_, AddSessionConfigEntry(api_)(made.get(), kInstancesKey, instances.c_str()));
      check(api_, RegisterCustomOps(made.get(), runtime_.base));
    }
    check(api_, CreateRunOptions(api_)(run_options_.out()));
    check(api_, RunOptionsSetRunLogSeverityLevel(api_)(run_options_.get(), kFatal));
    try {
      check(api_, CreateSessionFromArray(api_)(runtime_.env, model.data(), model.size(), made.get(), session_.out()));
    } catch (const Error& error) {
      if (std::strstr(error.what(), kShared))
        throw Failure(CAPSEDGE_ARTEFACT,
                      "ONNX Runtime " + runtime_.version + " cannot multiply the bytes of " + name + " exactly here.",
                      "Two integer operators share an INT8 weight or zero point. On x86 processors without VNNI, ONNX "
                      "Runtime turns these into UINT8, and fails at the second operator.",
                      "Give each operator its own tensors, write QuantizeLinear and DequantizeLinear instead of integer "
                      "operators, or use a processor with VNNI.");
      throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime " + runtime_.version + " cannot load " + name + ".",
                    first_line(error.what()),
                    "Check the file with `capsedge inspect`, or export it again with `capsedge export`.");
    }
    read_ports(SessionGetInputCount(api_), SessionGetInputTypeInfo(api_), SessionGetInputName(api_), inputs_);
    read_ports(SessionGetOutputCount(api_), SessionGetOutputTypeInfo(api_), SessionGetOutputName(api_), outputs_);
    for (const Port& port : inputs_) input_names_.push_back(port.name.c_str());
  }

  const char* name() const override { return "onnxruntime"; }
  const std::string& version() const override { return runtime_.version; }
  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override {
    Values given(api_), found(api_);
    const char* input_names[CAPSEDGE_MAX_TENSORS];
    const char* output_names[CAPSEDGE_MAX_TENSORS];
    for (size_t i = 0; i < input_count; ++i) {
      input_names[i] = input_names_[inputs[i].port];
      make(inputs[i], given.add());
    }
    for (size_t i = 0; i < output_count; ++i) {
      output_names[i] = outputs_[outputs[i].port].name.c_str();
      OrtValue*& value = found.add();
      if (outputs[i].type != CAPSEDGE_OTHER) make(outputs[i], value);
    }
    OrtStatus* const status = Run(api_)(session_.get(), run_options_.get(), input_names, given.data(), input_count,
                                        output_names, output_count, found.data());
    if (status != nullptr) fail(status);
    for (size_t i = 0; i < output_count; ++i)
      if (outputs[i].type == CAPSEDGE_OTHER) copy(found.data()[i], outputs[i]);
  }

 private:
  void make(const Value& value, OrtValue*& made) const {
    check(api_, CreateTensorWithDataAsOrtValue(api_)(runtime_.memory, value.data, value.bytes, value.shape,
                                                     static_cast<size_t>(value.rank),
                                                     static_cast<ONNXTensorElementDataType>(value.type), &made));
  }

  // An output whose shape was not known in advance.
  void copy(OrtValue* value, Value& to) const {
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
    check(api_, GetDimensions(api_)(raw, to.shape, rank));
    size_t bytes = element_bytes(type);
    for (size_t i = 0; i < rank; ++i) bytes *= static_cast<size_t>(to.shape[i]);
    if (bytes > to.bytes)
      fail_usage("Output '" + name + "' has no room.",
                 "It has the shape " + shape_text(to.shape, rank) + " and takes " + std::to_string(bytes) + " bytes; given: " +
                     std::to_string(to.bytes) + ".");
    void* data = nullptr;
    check(api_, GetTensorMutableData(api_)(value, &data));
    if (bytes > 0) std::memcpy(to.data, data, bytes);
    to.bytes = bytes;
    to.type = type;
    to.rank = static_cast<int32_t>(rank);
  }

  [[noreturn]] void fail(OrtStatus* status) const {
    const std::string why = first_line(GetErrorMessage(api_)(status));
    ReleaseStatus(api_)(status);
    if (why.find("indices element out of data bounds") != std::string::npos)
      fail_usage("An input has an index that its table does not have.", why,
                 "Give unknown items an index that the network was trained with, such as that of its padding.");
    throw Failure(CAPSEDGE_ARTEFACT, "ONNX Runtime failed while running " + name_ + ".", why,
                  "If the model was made for these shapes, the file is damaged: export it again.");
  }

  void read_ports(SessionGetInputCountType count_of, SessionGetInputTypeInfoType info_of, SessionGetInputNameType name_of,
                  std::vector<Port>& ports) const {
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
      Owned<OrtTypeInfo> info(api_, ReleaseTypeInfo);
      check(api_, info_of(session_.get(), i, info.out()));
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

  const OnnxRuntime& runtime_;
  const OrtApi* api_;
  const std::string name_;
  Owned<OrtSession> session_;
  Owned<OrtRunOptions> run_options_;
  std::vector<Port> inputs_, outputs_;
  std::vector<const char*> input_names_;
};

}  // namespace

std::unique_ptr<Backend> open_onnxruntime(std::string_view model, const std::string& name, int32_t threads,
                                          const OnnxFile& file, bool fused, const std::string& library) {
  check_overloads(file, name, onnxruntime(library), fused);
  return std::make_unique<OnnxRuntimeBackend>(model, name, threads, file, fused, library);
}

}  // namespace capsedge::libcapsedge
