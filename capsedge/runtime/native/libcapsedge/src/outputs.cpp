#include "outputs.h"

#include <algorithm>
#include <optional>

#include "failure.h"
#include "vocabulary.h"

namespace capsedge::libcapsedge {

namespace {

using spec::kEscalated, spec::kLengths, spec::kLogits, spec::kPoses, spec::ScoreKind;

bool fits(int64_t found, int64_t declared) { return declared < 0 || found == declared; }

const Port* port_of(const Backend& backend, const std::string& name) {
  for (const Port& port : backend.outputs())
    if (port.name == name) return &port;
  return nullptr;
}

std::string shape_of(const Port& port) { return shape_text(port.shape.data(), port.shape.size()); }

// Number of values per image; nothing if the file leaves sizes open.
std::optional<int64_t> elements(const Port& port) {
  int64_t count = 1;
  for (size_t i = 1; i < port.shape.size(); ++i) {
    if (port.shape[i] < 0) return std::nullopt;
    count *= port.shape[i];  // the session has bounded the fixed sizes
  }
  return count;
}

std::string unfit_input(const Metadata& m, const std::vector<Port>& inputs) {
  if (inputs.size() != 1 || inputs[0].shape.size() != 4)
    return "It has " + std::to_string(inputs.size()) + " inputs, not one, images [N, C, H, W].";
  const std::vector<int64_t>& shape = inputs[0].shape;
  if (!m.preprocessing) return "";
  const std::array<int64_t, 3> made = m.preprocessing->shape();
  if (fits(made[0], shape[1]) && fits(made[1], shape[2]) && fits(made[2], shape[3])) return "";
  return "It prepares images " + shape_text(made.data(), 3) + " for an input " + shape_of(inputs[0]) + ".";
}

// An output that was omitted when the model was opened has no shape to compare.
std::string unfit_classes(const Metadata& m, const Backend& backend, const std::string& scores, const std::string& poses) {
  const auto named = static_cast<int64_t>(m.class_names.size());
  int64_t classes = named > 0 ? named : -1;
  if (const Port* const port = port_of(backend, scores)) {
    const bool flat = port->shape.size() == 2;
    if ((named > 0 || m.outputs) && (!flat || (named > 0 && !fits(named, port->shape[1]))))
      return "It names " + std::to_string(named) + " classes, " + scores + " has " + shape_of(*port) + ".";
    if (classes < 0 && flat) classes = port->shape[1];
  }
  const Port* const posed = m.outputs && !poses.empty() ? port_of(backend, poses) : nullptr;
  if (posed != nullptr && (posed->shape.size() < 3 || (classes >= 0 && !fits(classes, posed->shape[1]))))
    return poses + " has " + shape_of(*posed) + ", not a pose for each class.";
  return "";
}

std::string misfit_of_values(const DeclaredOutputs& declared, const Backend& backend) {
  const auto named = static_cast<int64_t>(declared.names.size());
  int64_t known = 0;
  bool open = false, scalar = false;
  std::string found;
  for (const std::string& name : declared.values) {
    const Port* const port = port_of(backend, name);
    const std::optional<int64_t> count = port ? elements(*port) : std::nullopt;
    if (count) known += *count;
    else open = true;
    scalar = scalar || (port && port->shape.empty());
    if (port) found += (found.empty() ? "" : ", ") + name + " " + shape_of(*port);
  }
  if (!scalar && (open ? known <= named : known == named)) return "";
  return "It names " + std::to_string(named) + " values, the outputs have " + found + ".";
}

// The number of maps in scores [N, H, W] or [N, maps, H, W], channels last if the input has them so; -1 if the file leaves it open.
int64_t maps_of(const Port& port, bool last) { return port.shape.size() == 3 ? 1 : port.shape[last ? 3 : 1]; }

std::string misfit_of_maps(const Metadata& m, const Backend& backend) {
  const Port* const port = port_of(backend, m.outputs->scores);
  if (port == nullptr) return "";  // it was omitted when the model was opened
  const std::string of = port->name + " has " + shape_of(*port);
  if (port->shape.size() != 3 && port->shape.size() != 4) return "A mask needs scores [H, W] or [maps, H, W], " + of + ".";
  const auto named = static_cast<int64_t>(m.class_names.size());
  int64_t maps = maps_of(*port, m.preprocessing && m.preprocessing->channels_last);
  if (maps < 0) maps = named > 0 ? named : 1;
  if (maps > spec::kUnknownClass) return "A mask has at most " + std::to_string(spec::kUnknownClass) + " classes, " + of + ".";
  maps = std::max<int64_t>(2, maps);
  if (named > 0 && named != maps)
    return "It names " + std::to_string(named) + " classes, " + of + ", maps of " + std::to_string(maps) + ".";
  return "";
}

bool is_float(int32_t type) { return type == CAPSEDGE_FLOAT32 || type == CAPSEDGE_FLOAT16; }

// Adds an output whose sizes are those of the file, and `open` where it leaves one open after the batch. False if it is not
// there, is not of floats, or its size stays open.
bool add(const Backend& backend, const std::string& name, int64_t open, OutputRoles& a) {
  const std::vector<Port>& ports = backend.outputs();
  RoleOutput output;
  while (output.port < ports.size() && ports[output.port].name != name) ++output.port;
  if (output.port == ports.size() || !is_float(ports[output.port].type) || ports[output.port].shape.empty()) return false;
  const std::vector<int64_t>& shape = ports[output.port].shape;
  output.values = 1;
  for (size_t i = 1; i < shape.size(); ++i) {
    const int64_t size = shape[i] < 0 && i == 1 ? open : shape[i];
    if (size < 1) return false;
    output.shape.push_back(size);
    output.values *= static_cast<size_t>(size);
  }
  a.outputs.push_back(std::move(output));
  return true;
}

// The output of a cascade that states which network decided; nothing if it was omitted when the model was opened.
void add_escalated(const Backend& backend, OutputRoles& a) {
  const std::vector<Port>& ports = backend.outputs();
  RoleOutput output;
  while (output.port < ports.size() && ports[output.port].name != kEscalated) ++output.port;
  if (output.port == ports.size()) return;
  output.values = 1;
  a.outputs.push_back(std::move(output));
  a.escalated = true;
}

constexpr char kUseRun[] = "Use capsedge_run.";

void find_values(const DeclaredOutputs& declared, const Backend& backend, OutputRoles& a) {
  a.regression = true;
  a.values = declared.names.size();
  size_t found = 0;
  bool complete = true;
  for (const std::string& name : declared.values) {
    if (port_of(backend, name) == nullptr) {
      a.why_not = "It was opened without its output '" + name.substr(0, 80) + "'.";
      a.fix = "Name all outputs of its values in capsedge_open_options.outputs.";
      return;
    }
    complete = complete && add(backend, name, declared.values.size() == 1 ? static_cast<int64_t>(a.values) : -1, a);
    if (complete) found += a.outputs.back().values;
  }
  a.possible = complete && found == a.values;
  if (a.possible) return;
  a.why_not = "Its values are not floats of fixed sizes.";
  a.fix = kUseRun;
}

void find_maps(const Metadata& m, const Backend& backend, OutputRoles& a) {
  const Port* const port = port_of(backend, m.outputs->scores);
  if (port == nullptr) {
    a.why_not = "It was opened without its scores.";
    a.fix = "Name them in capsedge_open_options.outputs.";
    return;
  }
  const bool last = m.preprocessing && m.preprocessing->channels_last;
  const auto kind = word_of<ScoreKind>(m.outputs->kind);
  a.logits = kind == ScoreKind::kLogits;
  a.kind = text_of(kind == ScoreKind::kLength ? kind : ScoreKind::kProbability);
  a.class_names = m.class_names;
  const auto named = static_cast<int64_t>(m.class_names.size());
  a.possible = add(backend, m.outputs->scores, port->shape.size() == 4 && !last ? std::max<int64_t>(named, 1) : -1, a);
  if (!a.possible) {
    a.why_not = "Its scores are not floats of fixed sizes.";
    a.fix = kUseRun;
    return;
  }
  const std::vector<int64_t>& shape = a.outputs[0].shape;
  ScoreMaps maps{shape[0], shape[1], 1};
  if (shape.size() == 3 && last) maps.maps = maps.pixel = shape[2], maps.map = 1;
  else if (shape.size() == 3) maps = {shape[1], shape[2], shape[0], 1, shape[1] * shape[2]};
  a.maps = maps;
  for (int64_t j = named; j < std::max<int64_t>(2, maps.maps); ++j) a.class_names.push_back(std::to_string(j));
}

void find_scores(const Metadata& m, const Backend& backend, OutputRoles& a) {
  std::string scores = port_of(backend, kLengths) ? kLengths : kLogits, poses = kPoses;
  ScoreKind kind = scores == kLengths ? ScoreKind::kLength : ScoreKind::kLogits;
  if (m.outputs) scores = m.outputs->scores, kind = word_of<ScoreKind>(m.outputs->kind), poses = m.outputs->poses;
  const Port* const port = port_of(backend, scores);
  if (port == nullptr || (!poses.empty() && port_of(backend, poses) == nullptr)) {
    a.why_not = "It was opened without its scores or its poses.";
    a.fix = "Name both in capsedge_open_options.outputs.";
    return;
  }
  a.logits = kind == ScoreKind::kLogits;
  a.kind = text_of(kind == ScoreKind::kLength ? kind : ScoreKind::kProbability);
  a.several = m.task == spec::Task::kMultiLabel;
  a.class_names = m.class_names;
  const int64_t declared = port->shape.size() == 2 ? port->shape[1] : -1;
  const auto named = static_cast<int64_t>(m.class_names.size());
  a.classes = static_cast<int32_t>(named > 0 ? named : std::max<int64_t>(declared, 0));
  bool fixed = a.classes > 0 && port->shape.size() == 2 && add(backend, scores, a.classes, a);
  if (fixed && !poses.empty()) {
    fixed = add(backend, poses, a.classes, a) && a.outputs[1].shape.size() >= 2 && a.outputs[1].shape[0] == a.classes;
    if (fixed) a.pose_size = static_cast<int32_t>(a.outputs[1].values / static_cast<size_t>(a.classes));
  }
  for (int32_t j = static_cast<int32_t>(named); j < a.classes; ++j) a.class_names.push_back(std::to_string(j));
  a.possible = fixed;
  if (fixed && m.cascade) add_escalated(backend, a);
  if (fixed) return;
  a.why_not = "Its scores and poses are not [N, classes] and [N, classes, pose] of floats with fixed sizes.";
  a.fix = kUseRun;
}

}  // namespace

std::string misfit(const Metadata& m, const Backend& backend, const std::vector<std::string>& names) {
  const auto has = [&](const std::string& name) { return std::count(names.begin(), names.end(), name) == 1; };
  std::string why = unfit_input(m, backend.inputs());
  if (!why.empty()) return why;
  if (m.cascade) {
    const Port* const port = port_of(backend, kEscalated);
    if (!has(kEscalated) || (port != nullptr && (port->type != CAPSEDGE_BOOL || port->shape.size() != 1)))
      return std::string("It states a cascade; the graph has no output ") + kEscalated + " [N] of type bool.";
  }
  if (!m.outputs) {
    if (has(kLengths) == has(kLogits) || !has(kPoses))
      return "It needs the outputs lengths or logits, and poses; it has " + joined(names) + ".";
    return unfit_classes(m, backend, has(kLengths) ? kLengths : kLogits, kPoses);
  }
  std::vector<std::string> declared = m.outputs->values;
  for (const std::string* name : {&m.outputs->scores, &m.outputs->poses})
    if (!name->empty()) declared.push_back(*name);
  for (const std::string& name : declared)
    if (!has(name)) return "It names the output " + name.substr(0, 80) + "; the graph has " + joined(names) + ".";
  if (m.regression()) return misfit_of_values(*m.outputs, backend);
  if (m.segmentation()) return misfit_of_maps(m, backend);
  return unfit_classes(m, backend, m.outputs->scores, m.outputs->poses);
}

OutputRoles output_roles(const Metadata* m, const Backend& backend) {
  OutputRoles a;
  if (m == nullptr) {
    a.why_not = "The file has no metadata under 'capsedge.': it names neither its classes nor its preprocessing.";
    a.fix = "Use capsedge_run, or describe the model with `capsedge optimize MODEL.onnx -o NEW.onnx --classes ... --size ...`.";
    return a;
  }
  if (m->regression()) find_values(*m->outputs, backend, a);
  else if (m->segmentation()) find_maps(*m, backend, a);
  else find_scores(*m, backend, a);
  if (a.possible && !is_float(backend.inputs()[0].type)) {
    a.possible = false;
    a.why_not = "Its input does not take floats.";
    a.fix = kUseRun;
  }
  return a;
}

}  // namespace capsedge::libcapsedge
