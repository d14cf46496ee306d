#include "metadata.h"

#include <algorithm>
#include <set>

#include "failure.h"
#include "json.h"
#include "vocabulary.h"

namespace capsedge::libcapsedge {

namespace {

using spec::kPrefix;

using Texts = std::map<std::string, std::string_view>;
using Values = std::map<std::string, Json>;

// Objects whose members are read here; others only have to be objects.
constexpr std::string_view kRead[] = {"preprocessing", "outputs", "typical_input"};

Json::Kind kind_of(const spec::Property& property) {
  switch (property.kind) {
    case spec::Kind::kString: return Json::kString;
    case spec::Kind::kInteger: return Json::kInteger;
    case spec::Kind::kArray: return Json::kArray;
    case spec::Kind::kObject: return Json::kObject;
  }
  return Json::kNull;
}

// Our properties, by the names of their fields.
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

// A different schema is reported before its unknown fields are.
void check_schema(const Texts& texts) {
  const auto found = texts.find("schema");
  if (found == texts.end()) throw JsonError("'schema' is missing");
  const int64_t schema = value_of("schema", found->second, Json::kInteger, false).integer;
  if (schema != spec::kMetadataSchema)
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata has a different schema.",
                  "It has " + std::to_string(schema) + "; this version of capsedge reads " + std::to_string(spec::kMetadataSchema) + ".",
                  "Export the model again, or install the capsedge that made it.");
}

// Null for a name that no property has.
const spec::Property* property_of(std::string_view name) {
  const auto* const end = std::end(spec::kProperties);
  const auto* const found = std::find_if(std::begin(spec::kProperties), end, [&](const auto& p) { return name == p.name; });
  return found == end ? nullptr : found;
}

// The values of the fields, each of its own kind. Fields that a file does not state are missing.
Values values_of(const Texts& texts) {
  Values values;
  for (const auto& [name, text] : texts) {
    if (name == "schema") continue;
    const spec::Property* const property = property_of(name);
    if (property == nullptr) throw JsonError("it has '" + name.substr(0, 80) + "', which this version does not know");
    if (text.size() > static_cast<size_t>(property->most)) throw JsonError("'" + name + "' has over " + std::to_string(property->most >> 10) + " KiB");
    Json value = value_of(name, text, kind_of(*property), property->nullable);
    if (value.kind == Json::kNull && !property->required) continue;
    const bool read = value.kind != Json::kObject || std::find(std::begin(kRead), std::end(kRead), name) != std::end(kRead);
    values.emplace(name, read ? std::move(value) : Json());
  }
  for (const spec::Property& property : spec::kProperties)
    if (property.required && values.count(property.name) == 0)
      throw JsonError(std::string("'") + property.name + "' is missing");
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

Preprocessing preprocessing_of(const Json& json) {
  Preprocessing p;
  p.mean.assign(std::begin(spec::kDefaultMean), std::end(spec::kDefaultMean));
  p.std.assign(std::begin(spec::kDefaultStd), std::end(spec::kDefaultStd));
  bool sides[3] = {};
  // An unknown field could change the results, so it is refused.
  for (const auto& [name, value] : json.members) {
    if (name == "height") p.height = side(value), sides[0] = true;
    else if (name == "width") p.width = side(value), sides[1] = true;
    else if (name == "channels") p.channels = static_cast<int32_t>(std::min<int64_t>(value.whole(), limits::kInputValues + 1)), sides[2] = true;
    else if (name == "scale") p.scale = value.real();
    else if (name == "mean") p.mean = reals(value);
    else if (name == "std") p.std = reals(value);
    else if (name == "resize") p.resize = word_of<Resize>(value.string());
    else if (name == "per_image") p.per_image = word_of<PerImage>(value.string());
    else if (name == "layout") p.channels_last = known_word<spec::Layout>(value.string(), "layout") == spec::Layout::kNhwc;
    else if (name == "order") p.bgr = known_word<spec::Order>(value.string(), "order") == spec::Order::kBgr;
    else throw JsonError("'preprocessing' has '" + name + "', which this version does not know");
  }
  if (!sides[0] || !sides[1] || !sides[2]) throw JsonError("'preprocessing' has no size");
  const std::string wrong = p.wrong();
  if (!wrong.empty()) throw JsonError(wrong);
  return p;
}

DeclaredOutputs outputs_of(const Json& json) {
  json.only(spec::kOutputsMembers);
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
    throw JsonError(std::string("a ") + (m.segmentation() ? "segmentation" : "classification") +
                    " has an output for scores, and no values");
  } else if (m.segmentation() && !o.poses.empty()) {
    throw JsonError("a segmentation has no output for poses");
  } else {
    known_word<spec::ScoreKind>(o.kind, "kind of scores");
  }
  std::set<std::string> named;
  std::vector<std::string> all = o.values;
  for (const std::string* one : {&o.scores, &o.poses})
    if (!one->empty()) all.push_back(*one);
  for (const std::string& name : all)
    if (name.empty() || !named.insert(name).second) throw JsonError("an output is named twice, or has no name");
  if (o.values.size() > limits::kRunTensors) throw JsonError("the values are in over " + std::to_string(limits::kRunTensors) + " outputs");
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
    const auto text = [&](const char* name) {
      const auto found = values.find(name);
      return found == values.end() ? std::string(property_of(name)->text) : found->second.text;
    };
    const int64_t iterations = values.at("iterations").integer;
    if (iterations < INT32_MIN || iterations > INT32_MAX) throw JsonError("'iterations' is " + std::to_string(iterations));
    m.architecture = text("architecture");
    m.routing = text("routing");
    m.iterations = static_cast<int32_t>(iterations);
    m.precision = text("precision");
    m.task = known_word<spec::Task>(text("task"), "task");
    for (const Json& name : values.at("class_names").items) m.class_names.push_back(name.string());
    if (m.class_names.size() > limits::kWidth) throw JsonError("there are over " + std::to_string(limits::kWidth) + " classes");
    for (const std::string& name : m.class_names)
      if (characters(name) > limits::kNameCharacters)
        throw JsonError("a class name has over " + std::to_string(limits::kNameCharacters) + " characters");
    const Json& preprocessing = values.at("preprocessing");
    if (preprocessing.kind != Json::kNull) m.preprocessing = preprocessing_of(preprocessing);
    if (values.count("outputs") != 0) m.outputs = outputs_of(values.at("outputs"));
    if (m.outputs || m.regression() || m.segmentation()) check_outputs(m.outputs.value_or(DeclaredOutputs()), m);
    if (values.count("typical_input") != 0) {
      m.typical_input = typical_input_of(values.at("typical_input"));
      if (!m.preprocessing) throw JsonError("typical_input needs the preprocessing of images");
      if (std::min(m.preprocessing->height, m.preprocessing->width) < spec::kLeastSide)
        throw JsonError("typical_input needs " + std::to_string(spec::kLeastSide) + " pixels a side");
    }
    m.cascade = values.count("cascade") != 0;
    if (m.segmentation() && !m.class_names.empty() && (m.class_names.size() < 2 || m.class_names.size() > spec::kUnknownClass))
      throw JsonError("a segmentation has 2 to " + std::to_string(spec::kUnknownClass) + " classes");
    if (m.cascade && (m.regression() || m.segmentation()))
      throw JsonError(std::string("a ") + text_of(m.task) + " has no classes of images, so it cannot be a cascade");
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata cannot be read.", std::string(error.what()) + ".",
                  "Export the model again with `capsedge export`.");
  }
  return m;
}

Failure unreadable_inputs(const std::string& why) {
  return Failure(CAPSEDGE_ARTEFACT, std::string("The file's property ") + spec::kInputsKey + " cannot be read.", why + ".",
                 "Export the model again with `capsedge export`.");
}

std::map<std::string, InputBounds> read_input_bounds(const std::map<std::string, std::string>& properties) {
  std::map<std::string, InputBounds> stated;
  const auto found = properties.find(spec::kInputsKey);
  if (found == properties.end()) return stated;
  try {
    const Json json = parse_json(found->second);
    json.check(Json::kObject);
    for (const auto& [name, value] : json.members) {
      value.check(Json::kObject);
      value.only(spec::kInputMembers);
      InputBounds& bounds = stated[name];
      if (const Json* entries = value.find("entries"); entries != nullptr && entries->kind != Json::kNull) {
        bounds.entries = entries->whole();
        if (bounds.entries < 1)
          throw JsonError("the table of '" + name + "' has " + std::to_string(bounds.entries) + " entries");
      }
      bool limited = false;
      if (const Json* longest = value.find("longest"))
        for (const Json& length : longest->array()) {
          bounds.longest.push_back(length.whole());
          if (bounds.longest.back() < 0) throw JsonError("a longest length of '" + name + "' is below 0");
          limited = limited || bounds.longest.back() > 0;
        }
      if (const Json* independent = value.find("independent")) {
        independent->check(Json::kBool);
        bounds.independent = independent->truth;
      }
      if (bounds.entries < 0 && !limited && !bounds.independent) throw JsonError("nothing is stated about '" + name + "'");
    }
  } catch (const JsonError& error) {
    throw unreadable_inputs(error.what());
  }
  return stated;
}

}  // namespace capsedge::libcapsedge
