#include "metadata.h"

#include "failure.h"
#include "json.h"

namespace capsedge::embedding {

namespace {

constexpr int64_t kSchema = 1;
constexpr std::string_view kPrefix = "capsedge.";

using Values = std::map<std::string, Json>;

const Json& member(const Values& values, const char* name) {
  const auto found = values.find(name);
  if (found == values.end()) throw JsonError(std::string("'") + name + "' is missing");
  return found->second;
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

Preprocessing preprocessing_of(const Json& json) {
  if (json.kind != Json::kObject) throw JsonError("'preprocessing' is no object");
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
    else throw JsonError("'preprocessing' has '" + name + "', which this version does not know");
  }
  if (!sides[0] || !sides[1] || !sides[2]) throw JsonError("'preprocessing' has no size");
  const std::string wrong = p.wrong();
  if (!wrong.empty()) throw JsonError(wrong);
  return p;
}

}  // namespace

std::optional<Metadata> read_metadata(const std::map<std::string, std::string>& properties) {
  Metadata m;
  try {
    Values values;
    for (const auto& [key, text] : properties)
      if (std::string_view(key).substr(0, kPrefix.size()) == kPrefix)
        values[key.substr(kPrefix.size())] = parse_json(text);
    if (values.empty()) return std::nullopt;
    const int64_t schema = member(values, "schema").whole();
    if (schema != kSchema)
      throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata has another schema.",
                    "It has " + std::to_string(schema) + ", this version of capsedge reads " + std::to_string(kSchema) + ".",
                    "Export the model again, or install the capsedge that made it.");
    m.architecture = member(values, "architecture").string();
    m.routing = member(values, "routing").string();
    m.iterations = static_cast<int32_t>(member(values, "iterations").whole());
    m.precision = values.count("precision") ? values["precision"].string() : "fp32";
    m.task = member(values, "task").string();
    if (m.task != "single-label" && m.task != "multi-label") throw JsonError("task '" + m.task + "'");
    for (const Json& name : member(values, "class_names").array()) m.class_names.push_back(name.string());
    const Json& preprocessing = member(values, "preprocessing");
    if (preprocessing.kind != Json::kNull) m.preprocessing = preprocessing_of(preprocessing);
  } catch (const JsonError& error) {
    throw Failure(CAPSEDGE_ARTEFACT, "The model's metadata cannot be read.", std::string(error.what()) + ".",
                  "Export the model again with `capsedge export`.");
  }
  return m;
}

}  // namespace capsedge::embedding
