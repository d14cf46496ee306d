#include "json.h"

#include <clocale>
#include <cmath>
#include <cstdlib>

namespace capsedge::embedding {

namespace {

[[noreturn]] void fail(const std::string& message) { throw JsonError(message); }

// strtod in the C locale, whatever locale the program has set.
double to_double(const std::string& digits) {
  static const locale_t kC = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(digits.c_str(), nullptr, kC);
}

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
    fail(at_ >= text_.size() ? "it ends early" : "byte " + std::to_string(at_) + " is no JSON");
  }

  Json read(int depth) {
    if (depth > kDeepestJson) fail("it is nested more than " + std::to_string(kDeepestJson) + " deep");
    space();
    Json value;
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
    do {
      space();
      if (peek() != '"') unexpected();
      std::string name = string();
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
    value.number = to_double(written);
    if (!std::isfinite(value.number)) fail("the number at byte " + std::to_string(start) + " is too large");
    // 18 digits fit 64 bits whatever they are; no count in a model's metadata is longer.
    whole = whole && written.size() <= 18;
    value.kind = whole ? Json::kInteger : Json::kNumber;
    if (whole) value.integer = std::strtoll(written.c_str(), nullptr, 10);
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
  size_t at_ = 0;
};

const char* name_of(Json::Kind kind) {
  const char* const names[] = {"null", "a truth value", "a whole number", "a number", "a string", "a list", "an object"};
  return names[kind];
}

[[noreturn]] void wanted(const char* what, Json::Kind found) { fail(std::string(what) + " is wanted, found " + name_of(found)); }

}  // namespace

const Json* Json::find(std::string_view name) const {
  for (auto member = members.rbegin(); member != members.rend(); ++member)
    if (member->first == name) return &member->second;
  return nullptr;
}

const std::string& Json::string() const {
  if (kind != kString) wanted("a string", kind);
  return text;
}

int64_t Json::whole() const {
  if (kind != kInteger) wanted("a whole number", kind);
  return integer;
}

double Json::real() const {
  if (kind != kInteger && kind != kNumber) wanted("a number", kind);
  return number;
}

const std::vector<Json>& Json::array() const {
  if (kind != kArray) wanted("a list", kind);
  return items;
}

Json parse_json(std::string_view text, size_t longest) {
  if (text.size() > longest) fail("it has more than " + std::to_string(longest) + " bytes");
  if (!is_utf8(text)) fail("it is no UTF-8");
  return Reader(text).document();
}

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<unsigned char>(text[at++]);
    if (lead < 0x80) continue;
    int more;
    uint32_t code, least;
    if (lead >= 0xC2 && lead < 0xE0) more = 1, code = lead & 0x1Fu, least = 0x80;
    else if (lead >= 0xE0 && lead < 0xF0) more = 2, code = lead & 0x0Fu, least = 0x800;
    else if (lead >= 0xF0 && lead < 0xF5) more = 3, code = lead & 0x07u, least = 0x10000;
    else return false;
    for (; more > 0; --more) {
      if (at >= text.size()) return false;
      const auto next = static_cast<unsigned char>(text[at++]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3Fu);
    }
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  }
  return true;
}

}  // namespace capsedge::embedding
