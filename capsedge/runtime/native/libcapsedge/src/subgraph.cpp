#include "subgraph.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "generated/limits.h"
#include "generated/onnx_wire.h"
#include "wire.h"

namespace capsedge::libcapsedge {

namespace {

using namespace fields;
using namespace wire;

struct Node {
  std::string_view bytes;
  std::vector<std::string> inputs, outputs;
  std::string type, domain;
  bool holds_graphs = false;
};

// The main graph of a file.
class Graph {
 public:
  explicit Graph(std::string_view model) {
    each_message(model, [&](const Field& f) {
      if (f.number == kModelGraph) read(f.content);
    });
    for (const Node& node : nodes)
      for (const std::string& output : node.outputs)
        if (!output.empty()) makers_[output] = &node;
  }

  // The value, and those of which it is only a view in another shape or type, nearest first.
  std::vector<std::string> same_elements(const std::string& name) const {
    std::vector<std::string> chain = {name};
    for (int64_t k = 0; k < limits::kDecoderViews; ++k) {
      const Node* const node = maker(chain.back());
      if (node == nullptr || !node->domain.empty() || node->inputs.empty()) break;
      if (std::find(std::begin(spec::kViews), std::end(spec::kViews), node->type) == std::end(spec::kViews)) break;
      chain.push_back(node->inputs[0]);
    }
    return chain;
  }

  struct Part {
    std::set<const Node*> nodes;
    std::set<std::string> read;
  };

  // The nodes that compute `end` from `start`. Throws SubgraphError if they read anything else.
  Part between(const std::string& start, const std::string& end) const {
    Part part;
    part.read = {start, ""};
    std::vector<std::string> wanted = {end};
    while (!wanted.empty()) {
      const std::string name = wanted.back();
      wanted.pop_back();
      if (!part.read.insert(name).second) continue;
      const Node* const node = maker(name);
      if (node == nullptr) {
        if (tensors.count(name) == 0) throw SubgraphError("it also depends on '" + name + "'");
        continue;
      }
      if (node->holds_graphs) throw SubgraphError("its " + node->type + " node holds a graph");
      part.nodes.insert(node);
      wanted.insert(wanted.end(), node->inputs.begin(), node->inputs.end());
    }
    return part;
  }

  // The node that computes a value; null if none does.
  const Node* maker(const std::string& value) const {
    const auto found = makers_.find(value);
    return found == makers_.end() ? nullptr : found->second;
  }

  std::string_view name;
  std::vector<Node> nodes;
  std::vector<std::pair<std::string, std::string_view>> in_order;  // tensors in file order
  std::map<std::string, std::string_view> tensors, values;

 private:
  void read(std::string_view graph) {
    each_message(graph, [&](const Field& f) {
      if (f.number == kGraphName) name = f.content;
      if (f.number == kGraphNode) nodes.push_back(node_of(f.content));
      if (f.number == kGraphTensor) {
        const std::string tensor = text_of(f.content, kTensorName);
        if (tensors.emplace(tensor, f.content).second) in_order.push_back({tensor, f.content});
      }
      if (f.number == kGraphOutput || f.number == kGraphValue) values[text_of(f.content, kValueName)] = f.content;
    });
  }

  static Node node_of(std::string_view bytes) {
    Node node;
    node.bytes = bytes;
    each_message(bytes, [&](const Field& f) {
      if (f.number == kNodeInput) node.inputs.emplace_back(f.content);
      if (f.number == kNodeOutput) node.outputs.emplace_back(f.content);
      if (f.number == kNodeType) node.type = f.content;
      if (f.number == kNodeDomain) node.domain = f.content;
      if (f.number == kNodeAttribute)
        each_message(f.content, [&](const Field& inner) {
          node.holds_graphs |= inner.number == kAttributeGraph || inner.number == kAttributeGraphs;
        });
    });
    return node;
  }

  std::map<std::string, const Node*> makers_;
};

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>((value & 0x7F) | 0x80);
  to += static_cast<char>(value);
}

void append(std::string& to, uint64_t number, std::string_view content) {
  append_varint(to, number << 3 | 2);
  append_varint(to, content.size());
  to += content;
}

// The ValueInfoProto of a value; empty if the file has none and the part needs its shape. What only reshapes it takes it in
// the shape of the first of `chain`, which it is the k-th of.
std::string description(const Graph& graph, const Graph::Part& part, const std::vector<std::string>& chain, size_t k) {
  const std::string& name = chain[k];
  const auto known = graph.values.find(name);
  if (known != graph.values.end()) return std::string(known->second);
  for (const Node* node : part.nodes) {
    const auto reads = std::find(node->inputs.begin(), node->inputs.end(), name);
    if (reads != node->inputs.end() && (node->type != "Reshape" || reads != node->inputs.begin())) return "";
  }
  for (size_t view = 0; view < k; ++view)
    if (graph.maker(chain[view])->type == "Cast") return "";
  std::string made;
  append(made, kValueName, name);
  each_message(graph.values.at(chain[0]), [&](const Field& f) {
    if (f.number == kValueType) append(made, kValueType, f.content);
  });
  return made;
}

std::string assembled(std::string_view model, const Graph& graph, const Graph::Part& part, const std::string& described,
                      const std::string& end) {
  std::string content;
  for (const Node& node : graph.nodes)
    if (part.nodes.count(&node) != 0) append(content, kGraphNode, node.bytes);
  append(content, kGraphName, graph.name);
  for (const auto& [name, bytes] : graph.in_order)
    if (part.read.count(name) != 0) append(content, kGraphTensor, bytes);
  append(content, kGraphOutput, graph.values.at(end));
  append(content, kGraphInput, described);
  std::string made;
  each(model, [&](const Field& f) {
    if (f.number == kModelGraph) append(made, kModelGraph, content);
    else if (f.number != kModelMetadata) made += f.whole;
  });
  return made;
}

}  // namespace

std::string extract_subgraph(std::string_view bytes, const std::string& start, const std::string& end) {
  const Graph graph(bytes);
  const std::vector<std::string> chain = graph.same_elements(start);
  std::string refused;
  for (size_t k = 0; k < chain.size(); ++k) {
    try {
      const Graph::Part part = graph.between(chain[k], end);
      const std::string described = description(graph, part, chain, k);
      if (!described.empty()) return assembled(bytes, graph, part, described, end);
      refused = "the file does not state the shape of '" + chain[k] + "'";
    } catch (const SubgraphError& error) {
      refused = error.what();
    }
  }
  throw SubgraphError(refused);
}

}  // namespace capsedge::libcapsedge
