#include "attributes.h"

#include <algorithm>

#include "generated/limits.h"

namespace capsedge {

namespace {

template <typename T>
T single(const Attributes& attributes, const char* name, T otherwise) {
  const char* op = attributes.spec().name;
  std::vector<T> values;
  if (!attributes.source().find(name, values)) {
    expect(!attributes.spec().attribute(name).required, op, "attribute '", name, "' is missing");
    return otherwise;
  }
  expect(values.size() == 1, op, "attribute '", name, "' has ", static_cast<int64_t>(values.size()),
         " values: wanted one");
  return values[0];
}

}  // namespace

int64_t Attributes::integer(const char* name) const { return single(*this, name, spec_.attribute(name).integers[0]); }

bool Attributes::flag(const char* name) const {
  const int64_t value = integer(name);
  expect(value == 0 || value == 1, spec_.name, "attribute '", name, "' is ", value, ": wanted 0 or 1");
  return value == 1;
}

float Attributes::number(const char* name) const {
  const AttributeSpec& wanted = spec_.attribute(name);
  const float value = single(*this, name, wanted.number);
  expect(value > 0 || !wanted.positive, spec_.name, "attribute '", name, "' is ", value, ": wanted a number above zero");
  return value;
}

std::vector<int64_t> Attributes::integers(const char* name, int64_t most) const {
  const auto& otherwise = spec_.attribute(name).integers;
  const int64_t least = spec_.attribute(name).positive ? 1 : 0;
  std::vector<int64_t> values;
  if (!source_.find(name, values)) return {otherwise.begin(), otherwise.end()};
  const bool fits = std::all_of(values.begin(), values.end(), [&](int64_t x) { return least <= x && x <= most; });
  const std::string bound = most < std::numeric_limits<int64_t>::max() ? " (at most " + std::to_string(most) + ")" : "";
  expect(fits && values.size() == otherwise.size(), spec_.name, "attribute '", name, "' is ", values, ": wanted ",
         static_cast<int64_t>(otherwise.size()), " numbers of ", least, " or more", bound);
  return values;
}

std::vector<float> Attributes::numbers(const char* name) const {
  std::vector<float> values;
  source_.find(name, values);
  expect(!values.empty(), spec_.name, "attribute '", name, "' is missing or empty");
  return values;
}

int64_t Attributes::iterations() const {
  const int64_t found = integer("iterations");
  expect(found >= 1 && found <= limits::kIterations, spec_.name, "attribute 'iterations' is ", found, ": wanted 1 to ",
         limits::kIterations);
  return found;
}

}  // namespace capsedge
