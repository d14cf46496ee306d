#include "metadata.h"

#include <algorithm>
#include <set>

#include "failure.h"
#include "json.h"

namespace capsedge::libcapsedge {

namespace {

constexpr int64_t kNewestSchema = 2;  // a file is of schema 2 only if it says what schema 1 cannot
constexpr size_t kMostNames = 1 << 16, kMostCharacters = 1024;
constexpr std::string_view kPrefix = "capsedge.";

using Values = std::map<std::string, Json>;

// The metadata of a file: the name, its kind, and whether it may be missing. Python has them as fields of ModelMetadata.
struct Entry {
  const char* name;
  Json::Kind kind;
  bool optional;
};
constexpr Entry kEntries[] = {
    {"schema", Json::kInteger, false},     {"architecture", Json::kString, false}, {"configuration", Json::kObject, false},
    {"routing", Json::kString, false},     {"iterations", Json::kInteger, false},  {"class_names", Json::kArray, false},
    {"preprocessing", Json::kObject, false}, {"task", Json::kString, true},        {"precision", Json::kString, true},
    {"calibration", Json::kObject, true},  {"checkpoint_sha256", Json::kString, true}, {"parity", Json::kObject, true},
    {"outputs", Json::kObject, true}};

const Entry* entry_of(std::string_view name) {
  for (const Entry& entry : kEntries)
    if (name == entry.name) return &entry;
  return nullptr;
}

// The values of the file's properties, each of its kind.
Values values_of(const std::map<std::string, std::string>& properties) {
  Values values;
  size_t bytes = 0;
  for (const auto& [key, text] : properties) {
    if (std::string_view(key).substr(0, kPrefix.size()) != kPrefix) continue;
    bytes += text.size();
    if (bytes > kMetadataBytes) throw JsonError("it has over " + std::to_string(kMetadataBytes >> 20) + " MiB");
    const std::string name = key.substr(kPrefix.size());
    const Entry* const entry = entry_of(name);
    if (entry == nullptr) throw JsonError("it has '" + name.substr(0, 80) + "', which this version does not know");
    Json value;
    try {
      value = parse_json(text, Nan::kNull);
      const bool none = value.kind == Json::kNull && (name == "preprocessing" || name == "outputs");  // may be absent
      if (!none) value.check(entry->kind);
    } catch (const JsonError& error) {
      throw JsonError("'" + name + "': " + error.what());
    }
    // The workstation's part is large, and nothing here needs it.
    if (entry->kind == Json::kObject && name != "preprocessing" && name != "outputs") value = Json();
    values.emplace(name, std::move(value));
  }
  if (values.empty()) return values;
  for (const Entry& entry : kEntries)
    if (!entry.optional && values.count(entry.name) == 0) throw JsonError(std::string("'") + entry.name + "' is missing");
  return values;
}

std::vector<double> reals(const Json& list) {
  std::vector<double> values;
  for (const Json& item : list.array()) values.push_back(item.real());
  return values;
}

int32_t side(const Json& value) {
  const int64_t whole = value.whole();
  if (whole < 1 || whole > kMostSide) throw JsonError("an input size is " + std::to_string(whole));
  return static_cast<int32_t>(whole);
}

bool is_channels_last(const std::string& layout) {
  if (layout != "NCHW" && layout != "NHWC") throw JsonError("layout '" + layout.substr(0, 80) + "'");
  return layout == "NHWC";
}

bool is_bgr(const std::string& order) {
  if (order != "RGB" && order != "BGR") throw JsonError("order '" + order.substr(0, 80) + "'");
  return order == "BGR";
}

Preprocessing preprocessing_of(const Json& json) {
  Preprocessing p;
  p.scale = 1.0 / 255.0;
  p.mean = {0.0};
  p.std = {1.0};
  bool sides[3] = {};
  // What is not known here would change the numbers, so it is refused.
  for (const auto& [name, value] : json.members) {
    if (name == "height") p.height = side(value), sides[0] = true;
    else if (name == "width") p.width = side(value), sides[1] = true;
    else if (name == "channels") p.channels = static_cast<int32_t>(std::min<int64_t>(value.whole(), kMostInput + 1)), sides[2] = true;
    else if (name == "scale") p.scale = value.real();
    else if (name == "mean") p.mean = reals(value);
    else if (name == "std") p.std = reals(value);
    else if (name == "resize") p.resize = resize_rule(value.string());
    else if (name == "per_image") p.per_image = per_image_rule(value.string());
    else if (name == "layout") p.channels_last = is_channels_last(value.string());
    else if (name == "order") p.bgr = is_bgr(value.string());
    else throw JsonError("'preprocessing' has '" + name + "', which this version does not know");
  }
  if (!sides[0] || !sides[1] || !sides[2]) throw JsonError("'preprocessing' has no size");
  const std::string wrong = p.wrong();
  if (!wrong.empty()) throw JsonError(wrong);
  return p;
}

StatedOutputs outputs_of(const Json& json) {
  json.only({"scores", "kind", "poses", "values", "names", "units"});
  StatedOutputs o;
  const auto text = [&](const char* name, std::string& to) {
    if (const Json* const found = json.find(name)) to = found->string();
  };
  const auto list = [&](const char* name, std::vector<std::string>& to) {
    if (const Json* const found = json.find(name))
      for (const Json& item : found->array()) to.push_back(item.string());
  };
  text("scores", o.scores), text("kind", o.kind), text("poses", o.poses);
  list("values", o.values), list("names", o.names), list("units", o.units);
  return o;
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Throws JsonError for outputs that contradict themselves, the task or the classes.
void check_outputs(const StatedOutputs& o, const Metadata& m) {
  if (m.regression()) {
    if (o.values.empty() || !o.scores.empty() || !o.kind.empty() || !o.poses.empty() || !m.class_names.empty())
      throw JsonError("a regression has outputs for values, and neither scores nor classes");
    if (o.names.empty() || o.units.size() != o.names.size())
      throw JsonError("the values have " + std::to_string(o.names.size()) + " names and " + std::to_string(o.units.size()) + " units");
  } else if (o.scores.empty() || !o.values.empty() || !o.names.empty() || !o.units.empty()) {
    throw JsonError("a classification has an output for scores, and no values");
  } else if (o.kind != "length" && o.kind != "logits" && o.kind != "probability") {
    throw JsonError("kind of scores '" + o.kind.substr(0, 80) + "'");
  }
  std::set<std::string> named;
  std::vector<std::string> all = o.values;
  for (const std::string* one : {&o.scores, &o.poses})
    if (!one->empty()) all.push_back(*one);
  for (const std::string& name : all)
    if (name.empty() || !named.insert(name).second) throw JsonError("an output is named twice, or has no name");
  if (o.names.size() > kMostNames) throw JsonError("there are over " + std::to_string(kMostNames) + " values");
  for (const auto* list : {&o.names, &o.units})
    for (const std::string& text : *list)
      if (characters(text) > kMostCharacters)
        throw JsonError("a name or unit has over " + std::to_string(kMostCharacters) + " characters");
}

}  // namespace

std::optional<Metadata> read_metadata(const std::map<std::string, std::string>& properties) {
  Metadata m;
  try {
    const Values values = values_of(properties);
    if (values.empty()) return std::nullopt;
    const auto text = [&](const char* name, const char* otherwise) {
      const auto found = values.find(name);
      return found == values.end() ? std::string(otherwise) : found->second.text;
    };
    const int64_t schema = values.at("schema").integer, iterations = values.at("iterations").integer;
    if (schema < 1 || schema > kNewestSchema)
      throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata has another schema.",
                    "It has " + std::to_string(schema) + ", this version of capsedge reads up to " + std::to_string(kNewestSchema) + ".",
                    "Export the model again, or install the capsedge that made it.");
    if (iterations < INT32_MIN || iterations > INT32_MAX) throw JsonError("'iterations' is " + std::to_string(iterations));
    m.architecture = text("architecture", "");
    m.routing = text("routing", "");
    m.iterations = static_cast<int32_t>(iterations);
    m.precision = text("precision", "fp32");
    m.task = text("task", "single-label");
    if (m.task != "single-label" && m.task != "multi-label" && !m.regression()) throw JsonError("task '" + m.task.substr(0, 80) + "'");
    for (const Json& name : values.at("class_names").items)  // older files name classes by number, too
      m.class_names.push_back(name.kind == Json::kInteger ? std::to_string(name.integer) : name.string());
    if (m.class_names.size() > kMostNames) throw JsonError("there are over " + std::to_string(kMostNames) + " classes");
    for (const std::string& name : m.class_names)
      if (characters(name) > kMostCharacters)
        throw JsonError("a class name has over " + std::to_string(kMostCharacters) + " characters");
    const Json& preprocessing = values.at("preprocessing");
    if (preprocessing.kind != Json::kNull) m.preprocessing = preprocessing_of(preprocessing);
    const auto outputs = values.find("outputs");
    if (outputs != values.end() && outputs->second.kind != Json::kNull) m.outputs = outputs_of(outputs->second);
    if (m.outputs || m.regression()) check_outputs(m.outputs.value_or(StatedOutputs()), m);
    const bool newer = m.outputs || (m.preprocessing && (m.preprocessing->channels_last || m.preprocessing->bgr ||
                                                         m.preprocessing->per_image != PerImage::kNothing));
    if (newer && schema < kNewestSchema)
      throw JsonError("schema " + std::to_string(schema) + " has no 'outputs', 'per_image', 'layout' and 'order'");
    const auto nothing = properties.find(kNothingProperty);
    if (nothing != properties.end()) m.nothing = read_nothing(nothing->second);
    m.cascade = properties.count(kCascadeProperty) != 0;
    if (m.cascade && m.regression()) throw JsonError("a regression has no classes to be in doubt between");
    if (m.nothing && (!m.preprocessing || std::min(m.preprocessing->height, m.preprocessing->width) < kLeastSide))
      throw JsonError("a criterion for nothing to see needs the preprocessing of images, from 3 pixels a side on");
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata cannot be read.", std::string(error.what()) + ".",
                  "Export the model again with `capsedge export`.");
  }
  return m;
}

}  // namespace capsedge::libcapsedge
