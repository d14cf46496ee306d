#include "cuda_operators.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "backend.h"
#include "cuda_node.h"
#include "cuda_nodes.h"
#include "cuda_runtime.h"
#include "files.h"
#include "generated/limits.h"
#include "generated/onnx_wire.h"
#include "instances.h"
#include "library_search.h"
#include "system/system.h"
#include "wire.h"

namespace capsedge::libcapsedge {

namespace {

using namespace fields;
using wire::each, wire::each_message, wire::text_of;

constexpr int kDriverCuda = 13;  // of the kernels' code: the driver has to support it
constexpr char kVariable[] = "CAPSEDGE_CUDA_KERNELS";
constexpr char kFile[] = "kernels.fatbin";
constexpr char kPackage[] = "/../../../../capsedge_cuda";  // from the Python package's lib folder
constexpr char kGet[] =
    "In a checkout of this version: `make cuda-wheel`. It is kernels.fatbin of dist/capsedge_cuda-*.whl: put it beside "
    "libcapsedge.so, or name it in CAPSEDGE_CUDA_KERNELS or in capsedge_open_options.cuda_kernels.";

// What the file states of a value.
struct Stated {
  int32_t type = 0;  // ONNX's number
  bool has_shape = false;
  std::vector<int64_t> shape;  // -1: not a number
};
using Values = std::map<std::string, Stated>;

struct Node {
  std::string type, name;
  std::vector<std::string> inputs, outputs;
  std::vector<std::pair<std::string, std::vector<double>>> attributes;  // those that are numbers
  bool at_top = false;  // of the graph itself, whose values have shapes
};

double number_of(std::string_view bytes) {
  float value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

// Of an attribute. Its numbers may be stored one by one or packed.
std::vector<double> numbers_of(std::string_view attribute) {
  std::vector<double> listed;
  std::optional<double> single;
  each(attribute, [&](const wire::Field& f) {
    const auto integer = static_cast<double>(static_cast<int64_t>(f.value));
    if (f.number == kAttributeInteger) single = integer;
    if (f.number == kAttributeFloat) single = number_of(f.content);
    if (f.number == kAttributeIntegers && !f.message()) listed.push_back(integer);
    if (f.number == kAttributeFloats && !f.message()) listed.push_back(number_of(f.content));
    if (f.number == kAttributeIntegers && f.message())
      for (size_t at = 0; at < f.content.size();)
        listed.push_back(static_cast<double>(static_cast<int64_t>(wire::varint(f.content, at))));
    if (f.number == kAttributeFloats && f.message())
      for (size_t at = 0; at + sizeof(float) <= f.content.size(); at += sizeof(float))
        listed.push_back(number_of(f.content.substr(at, sizeof(float))));
  });
  if (listed.empty() && single) listed.push_back(*single);
  return listed;
}

int64_t size_of(std::string_view dimension) {
  int64_t size = -1;
  each(dimension, [&](const wire::Field& f) {
    if (f.number == kDimensionSize && !f.message()) size = std::max<int64_t>(-1, static_cast<int64_t>(f.value));
    if (f.number == kDimensionName) size = -1;
  });
  return size;
}

// Forgets a shape whose elements cannot be counted; a size of zero counts as one.
Stated countable(Stated stated) {
  int64_t elements = 1;
  for (const int64_t size : stated.shape)
    if (size > 0 && __builtin_mul_overflow(elements, size, &elements)) stated.has_shape = false;
  if (stated.shape.size() > limits::kDimensions) stated.has_shape = false;
  return stated;
}

// Of a TypeProto.Tensor.
Stated tensor_of(std::string_view bytes) {
  Stated stated;
  each(bytes, [&](const wire::Field& f) {
    if (f.number == kElementType && !f.message()) stated.type = static_cast<int32_t>(f.value);
    if (f.number != kTensorShape || !f.message()) return;
    stated.has_shape = true;
    each_message(f.content, [&](const wire::Field& dimension) {
      if (dimension.number == kShapeDimension) stated.shape.push_back(size_of(dimension.content));
    });
  });
  return countable(stated);
}

// Of a ValueInfoProto.
Stated value_of(std::string_view bytes) {
  Stated stated;
  each_message(bytes, [&](const wire::Field& f) {
    if (f.number != kValueType) return;
    each_message(f.content, [&](const wire::Field& kind) {
      if (kind.number == kTypeTensor) stated = tensor_of(kind.content);
    });
  });
  return stated;
}

// Of stored data.
Stated initializer_of(std::string_view bytes) {
  Stated stated;
  stated.has_shape = true;
  each(bytes, [&](const wire::Field& f) {
    const auto add = [&](uint64_t size) { stated.shape.push_back(std::max<int64_t>(-1, static_cast<int64_t>(size))); };
    if (f.number == kTensorType && !f.message()) stated.type = static_cast<int32_t>(f.value);
    if (f.number == kTensorSizes && !f.message()) add(f.value);
    if (f.number == kTensorSizes && f.message())
      for (size_t at = 0; at < f.content.size();) add(wire::varint(f.content, at));
  });
  return countable(stated);
}

// The capsedge nodes of a file, and what it states of the values of its graph.
class Reader {
 public:
  explicit Reader(std::string_view model) {
    each_message(model, [&](const wire::Field& f) {
      if (f.number == kModelGraph) graph(f.content, true);
    });
    each_message(model, [&](const wire::Field& f) {
      if (f.number == kModelFunction) function(f.content);
    });
  }
  std::vector<Node> nodes;
  Values values;

 private:
  void graph(std::string_view bytes, bool top) {
    // A name in several lists has the last one's facts, as in Python.
    for (const uint64_t list : {kGraphValue, kGraphOutput, kGraphInput, kGraphTensor})
      each_message(bytes, [&](const wire::Field& f) {
        if (!top || f.number != list) return;
        if (list == kGraphTensor) values[text_of(f.content, kTensorName)] = initializer_of(f.content);
        else values[text_of(f.content, kValueName)] = value_of(f.content);
      });
    each_message(bytes, [&](const wire::Field& f) {
      if (f.number == kGraphNode) node(f.content, top);
    });
  }

  void function(std::string_view bytes) {
    each_message(bytes, [&](const wire::Field& f) {
      if (f.number == kFunctionNode) node(f.content, false);
    });
  }

  void node(std::string_view bytes, bool at_top) {
    if (text_of(bytes, kNodeDomain) == kDomain) {
      Node node;
      node.type = text_of(bytes, kNodeType);
      node.name = text_of(bytes, kNodeName);
      node.at_top = at_top;
      each_message(bytes, [&](const wire::Field& f) {
        if (f.number == kNodeInput) node.inputs.emplace_back(f.content);
        if (f.number == kNodeOutput) node.outputs.emplace_back(f.content);
        if (f.number != kNodeAttribute) return;
        std::vector<double> numbers = numbers_of(f.content);
        if (!numbers.empty()) node.attributes.emplace_back(text_of(f.content, kAttributeName), std::move(numbers));
      });
      nodes.push_back(std::move(node));
    }
    each_message(bytes, [&](const wire::Field& f) {
      if (f.number != kNodeAttribute) return;
      each_message(f.content, [&](const wire::Field& inner) {
        if (inner.number == kAttributeGraph || inner.number == kAttributeGraphs) graph(inner.content, false);
      });
    });
  }
};

// The kernels' number of an element type; -1 for one that they lack.
int32_t kernel_type(int32_t type) {
  switch (type) {
    case CAPSEDGE_FLOAT32: return CAPSEDGE_KERNEL_FLOAT;
    case CAPSEDGE_FLOAT16: return CAPSEDGE_KERNEL_FLOAT16;
    case CAPSEDGE_INT8: return CAPSEDGE_KERNEL_INT8;
    case CAPSEDGE_UINT8: return CAPSEDGE_KERNEL_UINT8;
    case CAPSEDGE_INT32: return CAPSEDGE_KERNEL_INT32;
    default: return -1;
  }
}

// The sizes of an input, any size of the batch as 1; false if another size is not known. Dimensions that `...` stands for
// may have any size.
bool sizes_of(const Stated& stated, const Parameter& parameter, std::vector<int64_t>& sizes) {
  if (!stated.has_shape) return false;
  const std::string first = parameter.shape.size() == 0 ? "" : parameter.shape[0];
  for (size_t axis = 0; axis < stated.shape.size(); ++axis) {
    const bool free = first == "..." || (axis == 0 && first == "N");
    if (stated.shape[axis] < 0 && !free) return false;
    sizes.push_back(std::max<int64_t>(stated.shape[axis], stated.shape[axis] < 0 ? 1 : 0));
  }
  return true;
}

bool all_named(const std::vector<std::string>& names) {
  return std::none_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); });
}

// Why the kernels do not take a node; empty if they do.
std::string refusal(const Node& node, const Values& values) {
  if (!node.at_top) return "it is inside another node or function, where no shapes are stated";
  const OperatorSpec* const spec = ort::split(node.type).first;
  if (spec == nullptr || !has_cuda_kernel(*spec)) return "the kernels do not include this operator";
  if (!spec->takes(node.inputs.size()) || !all_named(node.inputs)) return "it leaves out an input";
  if (node.outputs.size() != spec->outputs.size() || !all_named(node.outputs)) return "it leaves out an output";
  std::vector<std::vector<int64_t>> shapes(node.inputs.size());
  std::vector<capsedge_kernel_tensor> tensors;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto stated = values.find(node.inputs[i]);
    const std::string name = spec->inputs[i].name;
    if (stated == values.end() || !sizes_of(stated->second, spec->inputs[i], shapes[i]))
      return "the file does not state the shape of its input '" + name + "'";
    const int32_t type = kernel_type(stated->second.type);
    if (type < 0) return "its input '" + name + "' is " + type_name(stated->second.type);
    tensors.push_back({nullptr, shapes[i].data(), static_cast<int32_t>(shapes[i].size()), type});
  }
  std::vector<capsedge_kernel_attribute> attributes;
  for (const auto& [name, numbers] : node.attributes)
    attributes.push_back({name.c_str(), numbers.data(), static_cast<int32_t>(numbers.size())});
  char why[512] = "";
  const capsedge_cuda_node listed = {node.type.c_str(), attributes.data(), static_cast<int32_t>(attributes.size()),
                                     tensors.data(), static_cast<int32_t>(tensors.size())};
  return capsedge_cuda_takes(&listed, why, sizeof why) ? why : "";
}

// The same name for every way to a file, because a process loads one.
std::string one_name(const std::string& path) {
  const std::string real = resolved(path);
  return real.empty() ? path : real;
}

// Refuses a Python package capsedge-cuda of another version.
void check_package(const std::string& folder) {
  const std::string init = folder + "/__init__.py";
  const std::string text = is_file(init) ? read_file(init, 4096, "a Python file") : "";
  const std::string key = "__version__ = \"";
  const size_t at = text.find(key);
  const size_t from = at == std::string::npos ? text.size() : at + key.size();
  const std::string found = text.substr(from, text.find('"', from) - from);
  if (found == CAPSEDGE_VERSION) return;
  throw Failure(CAPSEDGE_ENVIRONMENT, "The installed CUDA kernels are of another version than libcapsedge.",
                "capsedge-cuda is " + (found.empty() ? "unknown" : found) + ", and libcapsedge is " + CAPSEDGE_VERSION + ".", kGet);
}

struct Missing {
  std::string what, why, fix;
};

// Which part of the kernels is missing here, if one is; else sets `kernels`.
std::optional<Missing> missing_part(const std::string& named, std::string& kernels) {
  kernels = find_cuda_kernels(named);
  if (kernels.empty())
    return Missing{"The CUDA kernels of capsedge are not installed.", "They come in a file of their own, kernels.fatbin.", kGet};
  const std::string driver = newest_cuda_of_driver();
  if (!driver.empty() && std::atoi(driver.c_str()) < kDriverCuda)
    return Missing{"The driver of the GPU is too old for the CUDA kernels of capsedge.",
                   "It supports CUDA " + driver + ", and they need CUDA " + std::to_string(kDriverCuda) + ".",
                   "Install NVIDIA driver 580 or later."};
  return std::nullopt;
}

// Refuses a file some of whose nodes have neither a kernel nor a body.
void check_bodies(const OnnxFile& file, const std::string& name, const CudaOperators& chosen, const std::optional<Missing>& missing) {
  std::set<std::string> without;
  for (const std::string& type : file.missing_functions())
    if (std::find(chosen.names.begin(), chosen.names.end(), type) == chosen.names.end()) without.insert(ort::operator_of(type));
  if (without.empty()) return;
  throw Failure(CAPSEDGE_ENVIRONMENT, name + " does not run on the GPU here.",
                "Its " + joined({without.begin(), without.end()}) + " nodes have no function body. " +
                    (!chosen.others.empty()    ? chosen.others
                     : chosen.kernels.empty() ? "ops is portable."
                                              : "The kernels do not include them."),
                missing ? missing->fix : "Export it again with `capsedge export --ops auto`.");
}

}  // namespace

CudaOperators fitting_operators(std::string_view bytes) {
  const Reader read(bytes);
  CudaOperators chosen;
  std::set<std::string> seen, misfits;
  for (const Node& node : read.nodes) {
    const OperatorSpec* const spec = ort::split(node.type).first;
    if (spec != nullptr && spec->standard) continue;  // its body has a kernel
    if (seen.insert(node.type).second) chosen.names.push_back(node.type);
    const std::string why = refusal(node, read.values);
    if (why.empty() || !misfits.insert(node.type).second) continue;
    const std::string where = !node.name.empty() || node.outputs.empty() ? node.name : node.outputs[0];
    if (chosen.others.empty()) chosen.others = node.type + " '" + where + "' has no CUDA kernel: " + why + ".";
  }
  const auto misfit = [&](const std::string& type) { return misfits.count(type) != 0; };
  chosen.names.erase(std::remove_if(chosen.names.begin(), chosen.names.end(), misfit), chosen.names.end());
  return chosen;
}

std::string find_cuda_kernels(const std::string& named) {
  const std::string variable = trusted_variable(kVariable);
  const bool by_variable = named.empty() && !variable.empty();
  if (!named.empty() || by_variable) {
    const std::string path = by_variable ? variable : named;
    if (is_file(path)) return one_name(path);
    throw Failure(CAPSEDGE_ENVIRONMENT, "The file of CUDA kernels " + path + " does not exist.",
                  by_variable ? std::string("The environment variable ") + kVariable + " names it."
                              : "capsedge_open_options.cuda_kernels names it.",
                  "Correct the name, or leave it out.");
  }
  const std::string beside = own_folder() + "/" + kFile, package = own_folder() + kPackage;
  if (is_file(beside)) return one_name(beside);
  if (!is_file(package + "/" + kFile)) return "";
  check_package(package);
  return one_name(package + "/" + kFile);
}

CudaOperators choose_operators(std::string_view bytes, const OnnxFile& file, const std::string& name, capsedge_ops ops,
                               const std::string& kernels) {
  CudaOperators chosen;
  if (file.capsedge_nodes.empty()) return chosen;
  std::optional<Missing> missing;
  if (ops != CAPSEDGE_OPS_PORTABLE) {
    std::string found;
    missing = missing_part(kernels, found);
    if (missing && ops == CAPSEDGE_OPS_FUSED) throw NoKernelsHere(missing->what, missing->why, missing->fix);
    if (missing) {
      chosen.others = missing->what + " " + missing->why;
    } else {
      chosen = fitting_operators(bytes);
      chosen.kernels = found;
    }
    if (!chosen.others.empty() && ops == CAPSEDGE_OPS_FUSED)
      throw Failure(CAPSEDGE_UNSUPPORTED, name + " does not run with CUDA kernels only.", chosen.others,
                    "Use CAPSEDGE_OPS_AUTO: such nodes then run as their function bodies.");
  }
  check_bodies(file, name, chosen, missing);
  return chosen;
}

}  // namespace capsedge::libcapsedge
