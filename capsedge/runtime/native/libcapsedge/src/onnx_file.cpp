#include "onnx_file.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>

#include "backend.h"
#include "failure.h"
#include "generated/limits.h"
#include "generated/signatures.h"
#include "text.h"

namespace capsedge::libcapsedge {

namespace {

using namespace fields;

// Domains of supported operators: ONNX's, ONNX Runtime's, ours, and those of the file's own functions.

enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A message of the schema, and its fields by tag: the number times 8, plus the wire type.
struct Message {
  struct Field {
    bool known = false;
    bool narrow = false;               // its values have 32 bits; protobuf drops the rest
    uint32_t once = 0;                 // its bit among the fields that occur at most once
    const Message* message = nullptr;  // of a submessage
  };
  std::string name;
  std::array<Field, 256> fields;
};
using Schema = std::map<std::string, Message>;

// spec::kOnnxWire as tables.
Schema parse_schema() {
  // One message per line, after joining continued lines.
  std::string text(spec::kOnnxWire);
  for (size_t at; (at = text.find(",\n")) != std::string::npos;) text[at + 1] = ' ';
  Schema schema;
  std::istringstream names(text);
  for (std::string line, name; std::getline(names, line);)
    if (std::istringstream(line) >> name) schema[name].name = name;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, kind;
    if (!(words >> name)) continue;
    uint32_t bit = 1;  // the first is the oneof's
    for (size_t number; words >> number >> kind;) {
      bit <<= 1;
      if (kind.back() == ',') kind.pop_back();
      const bool repeated = kind.back() == '*', one_of = kind.back() == '|';
      if (repeated || one_of) kind.pop_back();
      Message::Field field;
      field.known = true;
      field.once = repeated ? 0 : one_of ? 1 : bit;
      field.narrow = kind == "int32" && !repeated;
      const auto message = schema.find(kind);
      if (message != schema.end()) field.message = &message->second;
      const Wire wire = kind == "int64" || kind == "int32" ? kVarint
                        : kind == "float"                  ? kFixed32
                        : kind == "double"                 ? kFixed64
                                                           : kBytes;
      std::array<Message::Field, 256>& fields = schema[name].fields;
      fields.at(number << 3 | wire) = field;
      if (repeated) fields.at(number << 3 | kBytes) = field;  // numbers may be stored one by one or packed
    }
  }
  return schema;
}

const Message& model_message() {
  static const Schema& schema = *new Schema(parse_schema());
  return schema.at("ModelProto");
}

struct Field {
  uint64_t number;
  Wire wire;
  uint64_t value;      // of kVarint
  Span span;           // of kBytes and the fixed ones
  size_t start;        // of the key
};

// The last value of each field of a message; wire is -1 for a missing field.
struct Found {
  struct Value {
    int wire = -1;
    uint64_t number = 0;
    Span span{};
  };
  std::array<Value, 32> values;
  const Value& operator[](size_t number) const { return values[number]; }
  bool has(size_t number) const { return values[number].wire >= 0; }
};

// What the exporter calls the poses of an iteration whose operators stand in the graph itself:
// `DynamicRouting_iter1_pose__3`. As in capsedge/runtime/onnx_file/summary.py.
bool is_expanded_pose(std::string_view name) {
  const auto skip = [&](auto&& accepts) {
    size_t k = 0;
    while (k < name.size() && accepts(name[k])) ++k;
    name.remove_prefix(k);
    return k > 0;
  };
  const auto drop = [&](std::string_view word) {
    if (name.substr(0, word.size()) != word) return false;
    name.remove_prefix(word.size());
    return true;
  };
  const auto letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t end = name.find("Routing");
  if (end == 0 || end == std::string_view::npos) return false;
  for (const char c : name.substr(0, end))
    if (!letter(c)) return false;
  name.remove_prefix(end);
  drop("Routing");
  return drop("_iter") && skip(digit) && drop("_pose__") && skip(digit) && name.empty();
}

// Walks a file by the schema and the protobuf wire format (https://protobuf.dev/programming-guides/encoding);
// anything that protobuf would read differently is refused.
class Walker {
 public:
  Walker(std::string_view data, OnnxFile& file) : data_(data), file_(file) {}

  void model() {
    if (data_.substr(std::min<size_t>(4, data_.size()), 4) == spec::kOrtFormat)
      throw Malformed("it is also a file of ONNX Runtime's own format");
    const Found found = walk(model_message(), {0, data_.size()}, 0, Place::kModel);
    file_.producer = text(found, kModelProducer);
    file_.producer_version = text(found, kModelProducerVersion);
    if (!found.has(kModelGraph) || found[kModelIr].number == 0) throw Malformed("it has no graph");
  }

 private:
  // Fields of a message, in file order.
  template <typename F>
  void each(Span within, F&& take) {
    size_t at = within.start;
    while (at < within.end) {
      if (++seen_ > limits::kWireFields) throw Malformed("it has more than " + std::to_string(limits::kWireFields) + " fields");
      Field f{};
      f.start = at;
      const uint64_t tag = varint(at, within.end);
      // Protobuf keeps 32 bits of it; an overlong encoding is refused as well.
      if (tag > UINT32_MAX || (at - f.start > 1 && tag >> 7 * (at - f.start - 1) == 0))
        throw Malformed("the tag at byte " + std::to_string(f.start) + " is too long");
      f.number = tag >> 3;
      f.wire = static_cast<Wire>(tag & 7);
      if (f.wire == kVarint) {
        f.value = varint(at, within.end);
      } else if (f.wire == kBytes || f.wire == kFixed32 || f.wire == kFixed64) {
        const uint64_t length = f.wire == kBytes ? varint(at, within.end) : f.wire == kFixed32 ? 4 : 8;
        if (length > within.end - at)
          throw Malformed("a field at byte " + std::to_string(at) + " needs " + std::to_string(length) +
                          " bytes and " + std::to_string(within.end - at) + " are left");
        f.span = {at, at + static_cast<size_t>(length)};
        at = f.span.end;
      } else {
        throw Malformed("a field at byte " + std::to_string(at) + " has the unknown wire type " +
                        std::to_string(tag & 7));
      }
      take(f);
    }
  }

  enum class Place { kModel, kMainGraph, kElsewhere };

  // Walks a message and everything below it; returns the last value of each of its own fields.
  Found walk(const Message& message, Span within, int depth, Place place) {
    if (depth > limits::kWireDepth) throw Malformed("its messages are nested more than " + std::to_string(limits::kWireDepth) + " deep");
    if (++entered_ > limits::kWireMessages) throw Malformed("it has more than " + std::to_string(limits::kWireMessages) + " messages");
    Found found;
    uint32_t stood = 0;
    each(within, [&](const Field& f) {
      const uint64_t tag = f.number << 3 | static_cast<uint64_t>(f.wire);
      const Message::Field field = tag < message.fields.size() ? message.fields[tag] : Message::Field{};
      if (!field.known)
        throw Malformed("a " + message.name + " has a field " + std::to_string(f.number) + " of wire type " +
                        std::to_string(f.wire) + " at byte " + std::to_string(f.start) + ", which the format lacks");
      if (stood & field.once) throw Malformed("a " + message.name + " has its field " + std::to_string(f.number) + " twice");
      stood |= field.once;
      constexpr uint64_t kHalf = uint64_t{1} << 31;
      if (field.narrow && f.value >= kHalf && f.value < -kHalf)
        throw Malformed("a " + message.name + " has a number of over 32 bits in field " + std::to_string(f.number));
      found.values[f.number] = {f.wire, f.value, f.span};
      if (field.message == nullptr) return;
      const bool main = place == Place::kModel && f.number == kModelGraph;
      note(f, *field.message, walk(*field.message, f.span, depth + 1, main ? Place::kMainGraph : Place::kElsewhere), place);
    });
    return found;
  }

  // Keeps what is needed of a submessage.
  void note(const Field& field, const Message& message, const Found& found, Place parent) {
    if (message.name == "NodeProto") {
      node(found, field.span);
    } else if (message.name == "TensorProto") {
      // The runtime looks only at the location; a tensor has no other reason to name a file.
      if (found.has(kTensorExternal) || found[kTensorLocation].number != 0)
        file_.external.push_back(text(found, kTensorName));
    } else if (message.name == "FunctionProto") {
      const std::string name = text(found, kFunctionName), domain = text(found, kFunctionDomain);
      file_.functions.insert({domain, name});
      const std::string overload = text(found, kFunctionOverload);
      if (domain == kDomain) file_.capsedge_functions.insert({name, overload});
      if (overloads_.emplace(NodeType{domain, name}, overload).first->second != overload)
        file_.overloaded.insert({domain, name});
    } else if (parent == Place::kModel && field.number == kModelGraph) {
      file_.graph_field = {field.start, field.span.end};
      file_.graph = field.span;
    } else if (parent == Place::kModel && field.number == kModelOpset) {
      text(found, kOpsetDomain);  // an operator set's domain
    } else if (parent == Place::kModel && field.number == kModelMetadata) {
      file_.metadata[text(found, kEntryKey)] = text(found, kEntryValue);
    } else if (parent == Place::kMainGraph && field.number == kGraphOutput) {
      file_.outputs.push_back({text(found, kValueName), {field.start, field.span.end}});
    }
  }

  void node(const Found& found, Span within) {
    if (++nodes_ > limits::kGraphNodes) throw Malformed("it has more than " + std::to_string(limits::kGraphNodes) + " nodes");
    const std::string type = text(found, kNodeType), domain = text(found, kNodeDomain);
    file_.operators.insert({domain == "ai.onnx" ? "" : domain, type});
    if (domain == kDomain) {
      file_.capsedge_nodes.push_back({type, text(found, kNodeOverload)});
      each(within, [&](const Field& f) {
        if (f.number == kNodeInput && f.span.start == f.span.end) file_.unnamed_inputs.insert(type);
      });
    }
    if (is_expanded_pose(held(found, kNodeOutput))) file_.expanded_routing = true;
  }

  uint64_t varint(size_t& at, size_t end) const {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at >= end) throw Malformed("it ends at byte " + std::to_string(at) + ", inside a number");
      const auto byte = static_cast<unsigned char>(data_[at++]);
      if (shift == 63 && (byte & 0x7E) != 0) throw Malformed("a number at byte " + std::to_string(at) + " has more than 64 bits");
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed("a number at byte " + std::to_string(at) + " does not end");
  }

  std::string_view held(const Found& found, size_t number) const {
    const Span span = found[number].span;
    return data_.substr(span.start, span.end - span.start);
  }

  std::string text(const Found& found, size_t number) const {
    const std::string_view bytes = held(found, number);
    if (!is_utf8(bytes))
      throw Malformed("the text at byte " + std::to_string(found[number].span.start) + " is not UTF-8");
    return std::string(bytes);
  }

  std::string_view data_;
  OnnxFile& file_;
  std::map<NodeType, std::string> overloads_;
  size_t seen_ = 0, entered_ = 0, nodes_ = 0;
};

std::string varint_of(size_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

// What a file of another format is, by its first bytes; empty if that is not known.
std::string_view other_format(std::string_view bytes) {
  for (const spec::Signature& each : spec::kSignatures)
    if (bytes.size() >= each.at && bytes.substr(each.at, each.bytes.size()) == each.bytes) return each.name;
  return bytes.empty() ? "empty" : "";
}

}  // namespace

std::set<std::string> OnnxFile::missing_functions() const {
  std::set<std::string> missing;
  for (const NodeType& node : capsedge_nodes)
    if (capsedge_functions.count(node) == 0) missing.insert(node.first);
  return missing;
}

std::vector<std::string> OnnxFile::capsedge_types() const {
  std::vector<std::string> types;
  for (const NodeType& node : capsedge_nodes) types.push_back(node.first);
  return types;
}

OnnxFile read_onnx(std::string_view bytes, const std::string& name) {
  OnnxFile file;
  try {
    Walker(bytes, file).model();
  } catch (const Malformed& error) {
    if (const std::string_view told = other_format(bytes); !told.empty())
      throw Failure(CAPSEDGE_ARTEFACT, name + " is not an ONNX file: it is " + std::string(told) + ".", "",
                    "Pass the .onnx file of the model; `capsedge inspect` says how to make one from this file.");
    throw Failure(CAPSEDGE_ARTEFACT, name + " is not a complete ONNX file.", std::string("Read as one, ") + error.what() + ".",
                  "Fetch the file again, or export it again with `capsedge export`.");
  }
  return file;
}

void check_harmless(const OnnxFile& file, const std::string& name) {
  if (!file.external.empty())
    throw Failure(CAPSEDGE_ARTEFACT, name + " keeps weights in other files.",
                  std::to_string(file.external.size()) + " tensors are external, the first is '" + file.external[0] +
                      "'. capsedge reads self-contained files only, so that a model never opens other files.",
                  "Save it as one file: `onnx.save(onnx.load(path), path, save_as_external_data=False)`.");
  for (const NodeType& node : file.operators)
    if (node.second == spec::kCompiled)
      throw Failure(CAPSEDGE_ARTEFACT, name + " has " + spec::kCompiled + " nodes.",
                    "They hold or name code that was compiled for one device, which cannot be checked.",
                    "Use the ONNX file that they were compiled from.");
  if (!file.unnamed_inputs.empty())
    throw Failure(CAPSEDGE_ARTEFACT, name + " has a " + *file.unnamed_inputs.begin() + " node with an unnamed input.",
                  "An optional input of a capsule operator is left out by ending the list before it; at an empty name, "
                  "ONNX Runtime before 1.24 crashes.",
                  "Export the model again, or remove the empty names at the end of the node's inputs.");
  for (const NodeType& node : file.operators) {
    if (file.functions.count(node) != 0) continue;
    if (std::find(std::begin(kDomains), std::end(kDomains), node.first) != std::end(kDomains)) continue;
    throw Failure(CAPSEDGE_UNSUPPORTED, name + " has operators of the domain '" + node.first + "'.",
                  "The first is " + node.second + ". Known domains: " +
                      joined({std::begin(kDomains) + 1, std::end(kDomains)}) +
                      "; others are supported only as functions that the file defines.",
                  "Export the model again without them.");
  }
}

std::string keep_outputs(std::string_view bytes, const OnnxFile& file, const std::vector<std::string>& names,
                         const std::string& name) {
  for (const std::string& wanted : names) {
    std::string known;
    bool found = false;
    for (const auto& [output, span] : file.outputs) {
      found = found || output == wanted;
      known += (known.empty() ? "" : ", ") + output;
    }
    if (!found)
      fail_usage(name + " has no output '" + wanted + "'.", "Its outputs: " + known + ".", "Name some of these.");
  }
  std::string graph;
  graph.reserve(bytes.size());
  size_t at = file.graph.start;
  for (const auto& [output, span] : file.outputs) {
    if (std::find(names.begin(), names.end(), output) != names.end()) continue;
    graph += bytes.substr(at, span.start - at);
    at = span.end;
  }
  graph += bytes.substr(at, file.graph.end - at);
  std::string model;
  model.reserve(bytes.size() + 16);
  model += bytes.substr(0, file.graph_field.start);
  model += '\x3A';  // field 7, length-delimited
  model += varint_of(graph.size());
  model += graph;
  model += bytes.substr(file.graph_field.end);
  return model;
}

}  // namespace capsedge::libcapsedge
