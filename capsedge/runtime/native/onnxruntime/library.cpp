// The custom-operator library: `session_options.register_custom_ops_library(path)` calls RegisterCustomOps.
// Exceptions never leave it; a caller's mistakes are reported in statuses.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "cuda_node.h"
#include "instances.h"
#include "kernels.h"

namespace capsedge::ort {

namespace {

// How many names of each operator get a kernel: `DynamicRouting` to `DynamicRouting_16`. A file gives every distinct
// function body a name of its own (capsedge/spec/operators.py); a name without a kernel runs as its body.
using Instances = std::array<size_t, kOperatorCount>;
constexpr size_t kUsual = 16;        // if the session's options do not state a number
constexpr size_t kMostDomains = 64;  // kept for different files; domains are never released

// Place of an operator in the table, and the number of its name.
using Name = std::pair<size_t, size_t>;
using Names = std::set<Name>;
constexpr size_t kMostCudaDomains = 4096;

// An entry of the session's options; none if it is not there.
std::optional<std::string> option(const OrtApi* api, const OrtSessionOptions* options, const char* key) {
  int given = 0;
  check(api, HasSessionConfigEntry(api)(options, key, &given));
  if (!given) return std::nullopt;
  size_t size = 0;
  check(api, GetSessionConfigEntry(api)(options, key, nullptr, &size));
  std::string text(size, '\0');
  check(api, GetSessionConfigEntry(api)(options, key, text.data(), &size));
  return text.c_str();  // without the zero at its end
}

// `DynamicRouting:2,Squash:1` in the session's options: what the file to be loaded has.
Instances families_of(const OrtApi* api, const OrtSessionOptions* options) {
  Instances instances;
  const std::optional<std::string> text = option(api, options, kInstancesKey);
  if (!text) {
    instances.fill(kUsual);
    return instances;
  }
  instances.fill(1);
  std::istringstream entries(*text);
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

// `EMRouting,EMRouting_2`: the names that get a CUDA kernel. All others run as their bodies on the GPU.
Names cuda_names(const std::string& text) {
  Names names;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto [spec, number] = split(entry);
    if (spec == nullptr || number > kMaxInstances || !has_cuda_kernel(*spec))
      throw Error("capsedge: '" + entry + "' in " + kCudaOperatorsKey + " is not the name of an operator with a CUDA kernel");
    names.emplace(static_cast<size_t>(spec - kOperators.data()), number);
  }
  return names;
}

// Operators and domains outlive every session, since sessions hold pointers to them: they are made once and kept.
class Registry {
 public:
  explicit Registry(const OrtApi* api) : api_(api) {}

  OrtCustomOpDomain* cpu_domain(Instances instances) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (domains_.size() >= kMostDomains && domains_.count(instances) == 0) instances.fill(kUsual);
    OrtCustomOpDomain*& domain = domains_[instances];
    if (domain == nullptr) {
      Names names;
      for (size_t place = 0; place < instances.size(); ++place)
        for (size_t number = 1; number <= instances[place]; ++number) names.emplace(place, number);
      domain = made_of(names, cpu_operator, cpu_);
    }
    return domain;
  }

  OrtCustomOpDomain* cuda_domain(const Names& names) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cuda_domains_.size() >= kMostCudaDomains && cuda_domains_.count(names) == 0)
      throw Error("capsedge: this process has loaded files with " + std::to_string(kMostCudaDomains) +
                  " different sets of operators onto a GPU, and keeps each: start a new one");
    OrtCustomOpDomain*& domain = cuda_domains_[names];
    if (domain == nullptr) domain = made_of(names, cuda_operator, cuda_);
    return domain;
  }

 private:
  using Maker = CustomOp (*)(const OrtApi*, const OperatorSpec&, size_t, ONNXTensorElementDataType);
  using Operators = std::map<std::pair<Name, ONNXTensorElementDataType>, CustomOp>;

  OrtCustomOpDomain* made_of(const Names& names, Maker make, Operators& kept) {
    OrtCustomOpDomain* made = nullptr;
    check(api_, CreateCustomOpDomain(api_)(kDomain, &made));
    for (const Name& name : names) add(made, name, make, kept);
    return made;
  }

  // A variant for each T, which ONNX Runtime merges under one name.
  void add(OrtCustomOpDomain* domain, const Name& name, Maker make, Operators& kept) {
    const OperatorSpec& spec = kOperators[name.first];
    const bool has_floating =
        std::any_of(spec.inputs.begin(), spec.inputs.end(), [](const Parameter& input) { return input.type == 'T'; });
    for (const auto type : {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16}) {
      if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 && !has_floating) continue;
      auto found = kept.find({name, type});
      if (found == kept.end()) found = kept.emplace(std::pair(name, type), make(api_, spec, name.second, type)).first;
      check(api_, CustomOpDomain_Add(api_)(domain, &found->second));
    }
  }

  const OrtApi* api_;
  std::mutex mutex_;
  Operators cpu_, cuda_;
  std::map<Instances, OrtCustomOpDomain*> domains_;
  std::map<Names, OrtCustomOpDomain*> cuda_domains_;
};

// The domain that the session's options ask for: CUDA kernels for some names, or CPU kernels.
OrtCustomOpDomain* domain_for(const OrtApi* api, const OrtSessionOptions* options) {
  static Registry& registry = *new Registry(api);
  if (const std::optional<std::string> wanted = option(api, options, kCudaOperatorsKey)) {
    const std::optional<std::string> kernels = option(api, options, kCudaKernelsKey);
    if (!kernels)
      throw Error(std::string("capsedge: ") + kCudaOperatorsKey + " without " + kCudaKernelsKey +
                  ", the file of the kernels");
    set_cuda_kernels(*kernels);
    return registry.cuda_domain(cuda_names(*wanted));
  }
  return registry.cpu_domain(families_of(api, options));
}

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

}  // namespace

}  // namespace capsedge::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace capsedge::ort;
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) return too_old(base);
  return guarded(api, [&] { check(api, AddCustomOpDomain(api)(options, domain_for(api, options))); });
}
