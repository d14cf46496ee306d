#include "instances.h"

#include <algorithm>
#include <map>

namespace capsedge::ort {

std::pair<const OperatorSpec*, size_t> split(const std::string& type) {
  const size_t line = type.find('_');
  const OperatorSpec* const spec = find_operator(type.substr(0, line));
  if (spec == nullptr) return {nullptr, 0};
  if (line == std::string::npos) return {spec, 1};
  const std::string digits = type.substr(line + 1);
  const bool plain = !digits.empty() && digits.size() <= 6 && digits[0] != '0' && digits != "1" &&
                     digits.find_first_not_of("0123456789") == std::string::npos;
  return plain ? std::make_pair(spec, static_cast<size_t>(std::stoul(digits)))
               : std::pair<const OperatorSpec*, size_t>{nullptr, 0};
}

std::string operator_of(const std::string& type) {
  const OperatorSpec* const spec = split(type).first;
  return spec ? spec->name : type;
}

std::string instances(const std::vector<std::string>& types) {
  std::map<std::string, size_t> most;
  for (const std::string& type : types) {
    const auto [spec, number] = split(type);
    if (spec == nullptr) continue;
    size_t& count = most[spec->name];
    count = std::max(count, std::min(number, kMaxInstances));
  }
  std::string text;
  for (const auto& [name, count] : most) text += (text.empty() ? "" : ",") + name + ":" + std::to_string(count);
  return text;
}

}  // namespace capsedge::ort
