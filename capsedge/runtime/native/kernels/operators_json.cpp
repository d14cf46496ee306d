#include "operators_json.h"

#include <locale>
#include <sstream>

#include "operators.h"

namespace capsedge {

namespace {

template <typename List, typename Write>
std::string array_of(const List& list, Write&& write) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ",") + write(item);
  return "[" + text + "]";
}

// Names in the table need no escapes.
std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string text_of(bool truth) { return truth ? "true" : "false"; }

// The fewest digits that read back as the same float, whatever the program's locale.
std::string text_of(float number) {
  for (int digits = 1;; ++digits) {
    std::stringstream text;
    text.imbue(std::locale::classic());
    text.precision(digits);
    text << number;
    const std::string written = text.str();
    float read = 0;
    text >> read;
    if (read == number || digits == 9) return written;
  }
}

std::string default_of(const AttributeSpec& attribute) {
  if (attribute.required) return "null";
  const auto integer = [](int64_t value) { return std::to_string(value); };
  if (attribute.is_integer())
    return attribute.is_list() ? array_of(attribute.integers, integer) : integer(attribute.integers[0]);
  return text_of(attribute.number);
}

std::string type_of(AttributeType type) {
  switch (type) {
    case AttributeType::kInt: return "int";
    case AttributeType::kFloat: return "float";
    case AttributeType::kInts: return "ints";
    case AttributeType::kFloats: return "floats";
  }
  return "";
}

std::string json_of(const Parameter& p) {
  return "{\"name\":" + quoted(p.name) + ",\"type\":" + quoted(std::string(1, p.type)) +
         ",\"optional\":" + text_of(p.optional) + ",\"shape\":" +
         array_of(p.shape, [](const char* name) { return quoted(name); }) + ",\"ones\":" + std::to_string(p.ones) +
         ",\"per_image\":" + text_of(p.per_image) + ",\"body_ones\":" + std::to_string(p.body_ones) + "}";
}

std::string json_of(const AttributeSpec& a) {
  return "{\"name\":" + quoted(a.name) + ",\"type\":" + quoted(type_of(a.type)) + ",\"default\":" + default_of(a) +
         ",\"flag\":" + text_of(a.flag) + ",\"positive\":" + text_of(a.positive) + "}";
}

std::string json_of(const OperatorSpec& o) {
  const auto item = [](const auto& x) { return json_of(x); };
  return "{\"name\":" + quoted(o.name) + ",\"inputs\":" + array_of(o.inputs, item) + ",\"outputs\":" +
         array_of(o.outputs, item) + ",\"attributes\":" + array_of(o.attributes, item) +
         ",\"plugin\":" + text_of(o.plugin) + ",\"quantizes\":" + (o.quantizes ? quoted(o.quantizes) : "null") + "}";
}

}  // namespace

std::string operators_json() {
  return array_of(kOperators, [](const OperatorSpec& o) { return json_of(o); });
}

}  // namespace capsedge
