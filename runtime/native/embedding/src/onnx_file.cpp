#include "onnx_file.h"

#include <algorithm>
#include <stdexcept>

#include "failure.h"
#include "families.h"
#include "json.h"

namespace capsedge::embedding {

namespace {

constexpr size_t kMostFields = 4'000'000;  // keeps a hostile file from taking minutes
constexpr int kDeepest = 64;               // subgraphs within subgraphs

enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Field {
  uint64_t number;
  Wire wire;
  uint64_t value;      // of kVarint
  Span span;           // of kBytes and the fixed ones
  size_t start;        // of the key
};

// Walks the protobuf wire format (https://protobuf.dev/programming-guides/encoding); weights are stepped over.
class Walker {
 public:
  Walker(std::string_view data, OnnxFile& file) : data_(data), file_(file) {}

  void model() {
    uint64_t version = 0;
    each({0, data_.size()}, [&](const Field& f) {
      if (f.number == 1 && f.wire == kVarint) version = f.value;
      if (f.wire != kBytes) return;
      switch (f.number) {
        case 2: text(f.span); break;  // the producer
        case 8:  // an operator set: its domain
          bytes(f.span, [&](const Field& g) {
            if (g.number == 1) text(g.span);
          });
          break;
        case 14: metadata(f.span); break;
        case 25: function(f.span); break;
        case 7:
          ++file_.graphs;
          file_.graph_field = {f.start, f.span.end};
          file_.graph = f.span;
          graph(f.span, 0, true);
          break;
        case 20: bytes(f.span, [&](const Field& g) { graph(g.span, 0, false); }); break;
        default: break;
      }
    });
    if (file_.graphs == 0 || version == 0) throw Malformed("it has no graph");
  }

 private:
  template <typename F>
  void each(Span within, F&& take) {
    size_t at = within.start;
    while (at < within.end) {
      if (++seen_ > kMostFields) throw Malformed("it has more than " + std::to_string(kMostFields) + " fields");
      Field f{};
      f.start = at;
      const uint64_t key = varint(at, within.end);
      f.number = key >> 3;
      f.wire = static_cast<Wire>(key & 7);
      if (f.number == 0) throw Malformed("a field at byte " + std::to_string(at) + " has no number");
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
                        std::to_string(key & 7));
      }
      take(f);
    }
  }

  template <typename F>
  void bytes(Span within, F&& take) {
    each(within, [&](const Field& f) {
      if (f.wire == kBytes) take(f);
    });
  }

  uint64_t varint(size_t& at, size_t end) const {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at >= end) throw Malformed("it ends at byte " + std::to_string(at) + ", inside a number");
      const auto byte = static_cast<unsigned char>(data_[at++]);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed("a number at byte " + std::to_string(at) + " does not end");
  }

  std::string text(Span span) const {
    const std::string_view found = data_.substr(span.start, span.end - span.start);
    if (!is_utf8(found)) throw Malformed("the text at byte " + std::to_string(span.start) + " is no UTF-8");
    return std::string(found);
  }

  void metadata(Span span) {
    std::string key, value;
    bytes(span, [&](const Field& f) {
      const std::string found = text(f.span);
      if (f.number == 1) key = found;
      if (f.number == 2) value = found;
    });
    file_.metadata[key] = value;
  }

  void function(Span span) {
    std::string name, domain, overload;
    bytes(span, [&](const Field& f) {
      if (f.number == 1) name = text(f.span);
      if (f.number == 7) node(f.span, 0);
      if (f.number == 10) domain = text(f.span);
      if (f.number == 13) overload = text(f.span);
    });
    if (domain == kDomain) file_.capsedge_functions.insert({name, overload});
    if (overloads_.emplace(std::make_pair(domain, name), overload).first->second != overload)
      file_.overloaded.insert({domain, name});
  }

  void graph(Span span, int depth, bool main) {
    if (depth > kDeepest) throw Malformed("its graphs are nested more than " + std::to_string(kDeepest) + " deep");
    bytes(span, [&](const Field& f) {
      if (f.number == 1) node(f.span, depth);
      if (f.number == 5) tensor(f.span);
      if (f.number == 15) sparse(f.span);
      if (f.number == 12 && main) output(f);
    });
  }

  void output(const Field& field) {
    std::string name;
    bytes(field.span, [&](const Field& f) {
      if (f.number == 1) name = text(f.span);
    });
    file_.outputs.push_back({name, {field.start, field.span.end}});
  }

  void node(Span span, int depth) {
    std::string type, domain, overload;
    bytes(span, [&](const Field& f) {
      if (f.number == 4) type = text(f.span);
      if (f.number == 5) attribute(f.span, depth);
      if (f.number == 7) domain = text(f.span);
      if (f.number == 8) overload = text(f.span);
    });
    if (domain == kDomain) file_.capsedge_nodes.push_back({type, overload});
  }

  void attribute(Span span, int depth) {
    bytes(span, [&](const Field& f) {
      if (f.number == 5 || f.number == 10) tensor(f.span);
      if (f.number == 22 || f.number == 23) sparse(f.span);
      if (f.number == 6 || f.number == 11) graph(f.span, depth + 1, false);
    });
  }

  void sparse(Span span) {
    bytes(span, [&](const Field& f) {
      if (f.number == 1 || f.number == 2) tensor(f.span);
    });
  }

  void tensor(Span span) {
    std::string name;
    bool external = false;
    each(span, [&](const Field& f) {
      if (f.number == 8 && f.wire == kBytes) name = text(f.span);
      if (f.number == 13 || (f.number == 14 && f.wire == kVarint && f.value == 1)) external = true;
    });
    if (external) file_.external.push_back(name);
  }

  std::string_view data_;
  OnnxFile& file_;
  std::map<std::pair<std::string, std::string>, std::string> overloads_;
  size_t seen_ = 0;
};

std::string varint_of(size_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

}  // namespace

std::set<std::string> OnnxFile::missing_functions() const {
  std::set<std::string> missing;
  for (const NodeType& node : capsedge_nodes)
    if (capsedge_functions.count(node) == 0) missing.insert(ort::operator_of(node.first));
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
    throw Failure(CAPSEDGE_ARTEFACT, name + " is not a whole ONNX file.", std::string("Read as one, ") + error.what() + ".",
                  "Fetch the file again, or export it again with `capsedge export`.");
  }
  return file;
}

std::string keep_outputs(std::string_view bytes, const OnnxFile& file, const std::vector<std::string>& names,
                         const std::string& name) {
  if (file.graphs != 1)
    throw Failure(CAPSEDGE_ARTEFACT, name + " has " + std::to_string(file.graphs) + " graphs.",
                  "Outputs are taken off a model with one.", "Open it with all of its outputs.");
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

}  // namespace capsedge::embedding
