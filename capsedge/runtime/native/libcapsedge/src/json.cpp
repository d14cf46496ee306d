#include "json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <set>

#include "system/system.h"
#include "text.h"

namespace capsedge::libcapsedge {

namespace {

[[noreturn]] void fail(const std::string& message) { throw JsonError(message); }

// The number of digits that always fit in 64 bits without a sign.
bool is_unsigned(const std::string& digits) {
  errno = 0;
  std::strtoull(digits.c_str(), nullptr, 10);
  return errno == 0 && digits[0] != '-';
}

constexpr size_t kMostDigits = 20;  // 64 bits and a sign

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json document() {
    Json value = read(0);
    space();
    if (at_ != text_.size()) fail("something follows the value at byte " + std::to_string(at_));
    return value;
  }

 private:
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  [[noreturn]] void unexpected() const {
    fail(at_ >= text_.size() ? "it ends early" : "byte " + std::to_string(at_) + " is not JSON");
  }

  Json read(int depth) {
    if (++count_ > limits::kMetadataValues) fail("it has over " + std::to_string(limits::kMetadataValues) + " values");
    space();
    Json value;
    if ((peek() == '{' || peek() == '[') && depth + 1 >= limits::kJsonDepth)
      fail("it is nested over " + std::to_string(limits::kJsonDepth) + " deep");
    if (take('{')) {
      value.kind = Json::kObject;
      members(value, depth);
    } else if (take('[')) {
      value.kind = Json::kArray;
      items(value, depth);
    } else if (peek() == '"') {
      value.kind = Json::kString;
      value.text = string();
    } else if (take("true")) {
      value.kind = Json::kBool;
      value.truth = true;
    } else if (take("false")) {
      value.kind = Json::kBool;
    } else if (!take("null")) {
      number(value);
    }
    return value;
  }

  void members(Json& value, int depth) {
    space();
    if (take('}')) return;
    std::set<std::string> names;
    do {
      space();
      if (peek() != '"') unexpected();
      std::string name = string();
      if (!names.insert(name).second) fail("it names '" + name.substr(0, 80) + "' twice");
      space();
      if (!take(':')) unexpected();
      value.members.emplace_back(std::move(name), read(depth + 1));
      space();
    } while (take(','));
    if (!take('}')) unexpected();
  }

  void items(Json& value, int depth) {
    space();
    if (take(']')) return;
    do {
      value.items.push_back(read(depth + 1));
      space();
    } while (take(','));
    if (!take(']')) unexpected();
  }

  size_t digits() {
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - start;
  }

  void number(Json& value) {
    const size_t start = at_;
    bool whole = true;
    take('-');
    if (!take('0') && digits() == 0) unexpected();
    if (take('.')) {
      whole = false;
      if (digits() == 0) unexpected();
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (digits() == 0) unexpected();
    }
    const std::string written(text_.substr(start, at_ - start));
    value.number = to_double(written.c_str());
    value.kind = Json::kNumber;
    if (whole) {
      if (written.size() > kMostDigits) fail("it has a number of over 64 bits");
      errno = 0;
      const long long number = std::strtoll(written.c_str(), nullptr, 10);
      if (errno == 0) value.kind = Json::kInteger, value.integer = number;
      else if (!is_unsigned(written)) fail("it has a number of over 64 bits");
    } else if (!std::isfinite(value.number)) {
      fail("the number at byte " + std::to_string(start) + " is too large");
    }
  }

  uint32_t four_hex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      code <<= 4;
      if (c >= '0' && c <= '9') code |= static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f') code |= static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F') code |= static_cast<uint32_t>(c - 'A' + 10);
      else unexpected();
    }
    return code;
  }

  void escape(std::string& to) {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"': case '\\': case '/': to += c; return;
      case 'b': to += '\b'; return;
      case 'f': to += '\f'; return;
      case 'n': to += '\n'; return;
      case 'r': to += '\r'; return;
      case 't': to += '\t'; return;
      case 'u': break;
      default: --at_; unexpected();
    }
    uint32_t code = four_hex();
    if (code >= 0xDC00 && code < 0xE000) fail("a lone surrogate before byte " + std::to_string(at_));
    if (code >= 0xD800 && code < 0xDC00) {
      if (!take('\\') || !take('u')) fail("a lone surrogate before byte " + std::to_string(at_));
      const uint32_t low = four_hex();
      if (low < 0xDC00 || low >= 0xE000) fail("a lone surrogate before byte " + std::to_string(at_));
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code < 0x80) {
      to += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    const uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    to += static_cast<char>(lead[more] | code >> 6 * more);
    for (int k = more - 1; k >= 0; --k) to += static_cast<char>(0x80 | ((code >> 6 * k) & 0x3F));
  }

  std::string string() {
    std::string to;
    ++at_;  // the quotation mark
    while (true) {
      if (at_ >= text_.size()) unexpected();
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) unexpected();
      ++at_;
      if (c == '\\') escape(to);
      else to += c;
    }
    ++at_;
    return to;
  }

  std::string_view text_;
  size_t at_ = 0, count_ = 0;
};

const char* name_of(Json::Kind kind) {
  const char* const names[] = {"null", "a truth value", "a whole number", "a number", "a string", "a list", "an object"};
  return names[kind];
}


}  // namespace

const Json* Json::find(std::string_view name) const {
  for (const auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

void Json::only(const std::string_view* names, size_t count) const {
  for (const auto& member : members)
    if (std::find(names, names + count, member.first) == names + count)
      throw JsonError("it has '" + member.first.substr(0, 80) + "', which this version does not know");
}

const Json& Json::member(const char* name, Kind wanted) const {
  if (kind != kObject) throw JsonError("it is not an object");
  const Json* const found = find(name);
  if (found == nullptr) throw JsonError(std::string("'") + name + "' is missing");
  if (found->kind != wanted) throw JsonError(std::string("'") + name + "' is " + name_of(found->kind) + ", wanted " + name_of(wanted));
  return *found;
}

void Json::check(Kind wanted) const {
  if (kind != wanted) throw JsonError(std::string(name_of(wanted)) + " is wanted, found " + name_of(kind));
}

const std::string& Json::string() const {
  check(kString);
  return text;
}

int64_t Json::whole() const {
  check(kInteger);
  return integer;
}

double Json::real() const {
  if (kind != kInteger) check(kNumber);
  return number;
}

const std::vector<Json>& Json::array() const {
  check(kArray);
  return items;
}

Json parse_json(std::string_view text) {
  if (text.size() > limits::kJsonBytes) fail("it has over " + std::to_string(limits::kJsonBytes >> 20) + " MiB");
  if (!is_utf8(text)) fail("it is not UTF-8");
  return Reader(text).document();
}

}  // namespace capsedge::libcapsedge
