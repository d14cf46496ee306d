// The reader of JSON, and metadata over it. The first byte chooses: the document by itself, or as one property of
// metadata that is otherwise whole, or every line as a property.

#include "json.h"

#include <cstdlib>

#include "failure.h"
#include "metadata.h"

using namespace capsedge::libcapsedge;

namespace {

const std::map<std::string, std::string> kWhole = {
    {"schema", "1"}, {"architecture", "\"capsnet\""}, {"configuration", "{}"}, {"routing", "\"dynamic\""},
    {"iterations", "3"}, {"class_names", "[\"a\", \"b\"]"}, {"task", "\"single-label\""},
    {"preprocessing", "{\"height\": 8, \"width\": 8, \"channels\": 1}"}, {"typical_input", "null"}, {"cascade", "null"}};

std::map<std::string, std::string> whole() {
  std::map<std::string, std::string> properties;
  for (const auto& [key, value] : kWhole) properties["capsedge." + key] = value;
  return properties;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t choice = data[0] % (kWhole.size() + 2);
  try {
    if (choice == 0) {
      parse_json(text);
      return 0;
    }
    auto properties = whole();
    if (choice == 1) {
      while (!text.empty()) {
        const size_t line = std::min(text.find('\n'), text.size()), equal = text.substr(0, line).find('=');
        if (equal != std::string_view::npos)
          properties["capsedge." + std::string(text.substr(0, equal))] = std::string(text.substr(equal + 1, line - equal - 1));
        text.remove_prefix(std::min(text.size(), line + 1));
      }
    } else {
      auto place = kWhole.begin();
      std::advance(place, choice - 2);
      properties["capsedge." + place->first] = std::string(text);
    }
    read_metadata(properties);
  } catch (const JsonError&) {
  } catch (const Failure& failure) {
    if (!is_utf8(failure.what())) std::abort();
  }
  return 0;
}
