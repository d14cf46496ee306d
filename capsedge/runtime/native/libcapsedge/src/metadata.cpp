#include "metadata.h"

#include <algorithm>
#include <set>

#include "failure.h"
#include "json.h"

namespace capsedge::libcapsedge {

namespace {

constexpr int64_t kSchema = 1;
constexpr std::string_view kPrefix = "capsedge.";

using Texts = std::map<std::string, std::string_view>;
using Values = std::map<std::string, Json>;

// What a field holds, and when it may be missing.
enum class Need {
  kAlways,
  kOrNull,  // there, but null where the file does not state it
  kDefault,
  kStated,  // missing or null where the file does not state it
};

// The fields of the metadata, as those of ModelMetadata in Python; `most`: bytes of the text, where that is less than all
// of them may have together; `read`: whether anything here needs what is in an object.
struct Field {
  const char* name;
  Json::Kind kind;
  Need need;
  size_t most = limits::kMetadataBytes;
  bool read = true;
};
constexpr Field kFields[] = {
    {"architecture", Json::kString, Need::kAlways},
    {"configuration", Json::kObject, Need::kAlways, limits::kMetadataBytes, false},
    {"routing", Json::kString, Need::kAlways},
    {"iterations", Json::kInteger, Need::kAlways},
    {"class_names", Json::kArray, Need::kAlways},
    {"preprocessing", Json::kObject, Need::kOrNull},
    {"task", Json::kString, Need::kDefault},
    {"precision", Json::kString, Need::kDefault},
    {"calibration", Json::kObject, Need::kDefault, limits::kMetadataBytes, false},
    {"checkpoint_sha256", Json::kString, Need::kDefault},
    {"parity", Json::kObject, Need::kDefault, limits::kMetadataBytes, false},
    {"outputs", Json::kObject, Need::kStated},
    {"origin", Json::kObject, Need::kStated, limits::kMetadataBytes, false},
    {"typical_input", Json::kObject, Need::kStated, limits::kTypicalInputBytes},
    {"cascade", Json::kObject, Need::kStated, limits::kCascadeBytes, false},
    {"trace", Json::kObject, Need::kStated, limits::kTraceBytes, false},
    {"chosen_scores", Json::kObject, Need::kStated, limits::kMetadataBytes, false},
};

// The properties of ours by the names of their fields.
Texts texts_of(const std::map<std::string, std::string>& properties) {
  Texts texts;
  size_t bytes = 0;
  for (const auto& [key, text] : properties) {
    if (std::string_view(key).substr(0, kPrefix.size()) != kPrefix) continue;
    bytes += text.size();
    if (bytes > limits::kMetadataBytes) throw JsonError("it has over " + std::to_string(limits::kMetadataBytes >> 20) + " MiB");
    texts.emplace(key.substr(kPrefix.size()), text);
  }
  return texts;
}

Json value_of(const std::string& name, std::string_view text, Json::Kind kind, bool null) {
  try {
    Json value = parse_json(text);
    if (!null || value.kind != Json::kNull) value.check(kind);
    return value;
  } catch (const JsonError& error) {
    throw JsonError("'" + name + "': " + error.what());
  }
}

// Another schema is refused before what only that one has.
void check_schema(const Texts& texts) {
  const auto found = texts.find("schema");
  if (found == texts.end()) throw JsonError("'schema' is missing");
  const int64_t schema = value_of("schema", found->second, Json::kInteger, false).integer;
  if (schema != kSchema)
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata has another schema.",
                  "It has " + std::to_string(schema) + ", this version of capsedge reads " + std::to_string(kSchema) + ".",
                  "Export the model again, or install the capsedge that made it.");
}

// The values of the fields, each of its kind. What a file does not state is missing.
Values values_of(const Texts& texts) {
  Values values;
  for (const auto& [name, text] : texts) {
    if (name == "schema") continue;
    const auto* const field = std::find_if(std::begin(kFields), std::end(kFields), [&name = name](const Field& f) { return name == f.name; });
    if (field == std::end(kFields)) throw JsonError("it has '" + name.substr(0, 80) + "', which this version does not know");
    if (text.size() > field->most) throw JsonError("'" + name + "' has over " + std::to_string(field->most >> 10) + " KiB");
    const bool null = field->need == Need::kOrNull || field->need == Need::kStated;
    Json value = value_of(name, text, field->kind, null);
    if (value.kind == Json::kNull && field->need == Need::kStated) continue;
    values.emplace(name, field->read || value.kind != Json::kObject ? std::move(value) : Json());
  }
  for (const Field& field : kFields)
    if ((field.need == Need::kAlways || field.need == Need::kOrNull) && values.count(field.name) == 0)
      throw JsonError(std::string("'") + field.name + "' is missing");
  return values;
}

std::vector<double> reals(const Json& list) {
  std::vector<double> values;
  for (const Json& item : list.array()) values.push_back(item.real());
  return values;
}

int32_t side(const Json& value) {
  const int64_t whole = value.whole();
  if (whole < 1 || whole > limits::kImageSide) throw JsonError("an input size is " + std::to_string(whole));
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
    else if (name == "channels") p.channels = static_cast<int32_t>(std::min<int64_t>(value.whole(), limits::kInputValues + 1)), sides[2] = true;
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

DeclaredOutputs outputs_of(const Json& json) {
  json.only({"scores", "kind", "poses", "values", "names", "units"});
  DeclaredOutputs o;
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
void check_outputs(const DeclaredOutputs& o, const Metadata& m) {
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
  if (o.names.size() > limits::kWidth) throw JsonError("there are over " + std::to_string(limits::kWidth) + " values");
  for (const auto* list : {&o.names, &o.units})
    for (const std::string& text : *list)
      if (characters(text) > limits::kNameCharacters)
        throw JsonError("a name or unit has over " + std::to_string(limits::kNameCharacters) + " characters");
}

}  // namespace

std::optional<Metadata> read_metadata(const std::map<std::string, std::string>& properties) {
  Metadata m;
  try {
    const Texts texts = texts_of(properties);
    if (texts.empty()) return std::nullopt;
    check_schema(texts);
    const Values values = values_of(texts);
    const auto text = [&](const char* name, const char* otherwise) {
      const auto found = values.find(name);
      return found == values.end() ? std::string(otherwise) : found->second.text;
    };
    const int64_t iterations = values.at("iterations").integer;
    if (iterations < INT32_MIN || iterations > INT32_MAX) throw JsonError("'iterations' is " + std::to_string(iterations));
    m.architecture = text("architecture", "");
    m.routing = text("routing", "");
    m.iterations = static_cast<int32_t>(iterations);
    m.precision = text("precision", "fp32");
    m.task = text("task", "single-label");
    if (m.task != "single-label" && m.task != "multi-label" && !m.regression()) throw JsonError("task '" + m.task.substr(0, 80) + "'");
    for (const Json& name : values.at("class_names").items) m.class_names.push_back(name.string());
    if (m.class_names.size() > limits::kWidth) throw JsonError("there are over " + std::to_string(limits::kWidth) + " classes");
    for (const std::string& name : m.class_names)
      if (characters(name) > limits::kNameCharacters)
        throw JsonError("a class name has over " + std::to_string(limits::kNameCharacters) + " characters");
    const Json& preprocessing = values.at("preprocessing");
    if (preprocessing.kind != Json::kNull) m.preprocessing = preprocessing_of(preprocessing);
    if (values.count("outputs") != 0) m.outputs = outputs_of(values.at("outputs"));
    if (m.outputs || m.regression()) check_outputs(m.outputs.value_or(DeclaredOutputs()), m);
    if (values.count("typical_input") != 0) {
      m.typical_input = typical_input_of(values.at("typical_input"));
      if (!m.preprocessing) throw JsonError("typical_input needs the preprocessing of images");
      if (std::min(m.preprocessing->height, m.preprocessing->width) < kLeastSide)
        throw JsonError("typical_input needs " + std::to_string(kLeastSide) + " pixels a side");
    }
    m.cascade = values.count("cascade") != 0;
    if (m.cascade && m.regression()) throw JsonError("a regression has no classes, and so no cascade");
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata cannot be read.", std::string(error.what()) + ".",
                  "Export the model again with `capsedge export`.");
  }
  return m;
}

}  // namespace capsedge::libcapsedge
