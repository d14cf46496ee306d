#include "program.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

namespace ptx {

const char* const kind_names[kKinds] = {"arithmetic", "load", "store", "shuffle", "barrier", "division", "integer", "move", "branch"};

namespace {

using Words = std::vector<std::string>;

struct Statement {
  std::string opcode, guard;  // "%p1" or "!%p1"
  Words operands;
  uint32_t line;
};

std::string trimmed(const std::string& text) {
  const char* blank = " \t\r";
  const size_t from = text.find_first_not_of(blank);
  return from == std::string::npos ? "" : text.substr(from, text.find_last_not_of(blank) - from + 1);
}

// At commas outside of braces and brackets.
Words split(const std::string& text) {
  Words found;
  int depth = 0;
  std::string word;
  for (const char c : text) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == ',' && depth == 0) {
      found.push_back(trimmed(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!trimmed(word).empty()) found.push_back(trimmed(word));
  return found;
}

char class_of(const std::string& type) {
  if (type == "pred") return 'p';
  if (type == "b16") return 'h';
  if (type == "b32" || type == "f32") return 'w';
  if (type == "b64") return 'd';
  return 0;
}
uint32_t bytes_of(char kind) { return kind == 'h' ? 2 : kind == 'w' ? 4 : kind == 'd' ? 8 : 0; }

class Reader {
 public:
  Reader(const Words& lines, const std::set<std::string>& shared, Kernel& kernel)
      : lines_(lines), shared_(shared), kernel_(kernel) {}

  [[noreturn]] void fail(uint32_t line, const std::string& why) const {
    throw std::runtime_error("PTX line " + std::to_string(line) + ": " + why + ": " + trimmed(lines_.at(line - 1)));
  }

  // From the line of .entry to the closing brace; returns the line behind it.
  uint32_t read(uint32_t line) {
    kernel_.first_line = line;
    const std::string& head = lines_[line - 1];
    const size_t name = head.find(".entry") + 7;
    kernel_.name = head.substr(name, head.find('(') - name);
    uint32_t at = line;
    if (head.find("()") == std::string::npos)
      for (++at; lines_[at - 1][0] != ')'; ++at) parameter(at);
    for (++at; lines_[at - 1] != "{"; ++at)
      if (lines_[at - 1].rfind(".maxntid", 0) == 0) kernel_.most_threads = std::stoi(lines_[at - 1].substr(9));
    for (++at; lines_[at - 1] != "}"; ++at) statements(at);
    kernel_.source.assign(lines_.begin() + line - 1, lines_.begin() + at);
    place_registers();
    emit();
    return at + 1;
  }

 private:
  void parameter(uint32_t line) {
    std::string text = trimmed(lines_[line - 1]);
    if (!text.empty() && text.back() == ',') text.pop_back();
    std::istringstream words(text);
    std::string word, type, name;
    uint32_t align = 0, count = 1;
    bool pointer = false;  // its alignment is that of what it points to
    while (words >> word) {
      if (word == ".align") words >> align;
      else if (word == ".ptr") pointer = true;
      else if (word == ".param") continue;
      else if (word[0] == '.') type = word.substr(1);
      else name = word;
    }
    const uint32_t size = static_cast<uint32_t>(std::stoi(type.substr(1))) / 8;
    const size_t bracket = name.find('[');
    if (bracket != std::string::npos) count = static_cast<uint32_t>(std::stoi(name.substr(bracket + 1)));
    if (!align || pointer) align = size;
    const uint32_t offset = (kernel_.parameter_bytes + align - 1) / align * align;
    symbols_[name.substr(0, bracket)] = offset;
    kernel_.parameters.push_back({offset, size * count});
    kernel_.parameter_bytes = offset + size * count;
  }

  void declare(uint32_t line, const std::string& text) {
    std::istringstream words(text);
    std::string word, type, name;
    words >> word >> type >> name;
    const char kind = class_of(type.substr(1));
    if (!kind) fail(line, "a type of registers that is not known");
    const size_t bracket = name.find('<');
    if (bracket == std::string::npos) {
      classes_[name] = kind;
      return;
    }
    const int count = std::stoi(name.substr(bracket + 1));
    for (int k = 0; k < count; ++k) classes_[name.substr(0, bracket) + std::to_string(k)] = kind;
  }

  void statements(uint32_t line) {
    std::string text = lines_[line - 1];
    text = trimmed(text.substr(0, text.find("//")));
    if (text.empty()) return;
    if (text[0] == '$' && text.back() == ':') {
      labels_[text.substr(0, text.size() - 1)] = statements_.size();
      return;
    }
    // The braces around inline assembly; those of vectors are inside a statement.
    if (text[0] == '{') text = trimmed(text.substr(1));
    for (size_t from = 0, to; from < text.size(); from = to + 1) {
      to = text.find(';', from);
      if (to == std::string::npos) {
        if (trimmed(text.substr(from)) != "}") fail(line, "a statement without an end");
        return;
      }
      statement(line, trimmed(text.substr(from, to - from)));
    }
  }

  void statement(uint32_t line, std::string text) {
    if (text.rfind(".reg", 0) == 0) return declare(line, text);
    if (text.rfind(".pragma", 0) == 0) return;  // advice to ptxas
    if (text[0] == '.') fail(line, "a directive that is not known");
    Statement made{"", "", {}, line};
    if (text[0] == '@') {
      const size_t blank = text.find_first_of(" \t");
      made.guard = text.substr(1, blank - 1);
      text = trimmed(text.substr(blank));
    }
    const size_t blank = text.find_first_of(" \t");
    made.opcode = text.substr(0, blank);
    if (blank != std::string::npos) made.operands = split(text.substr(blank));
    if (!made.guard.empty() && made.opcode.rfind("bra", 0) != 0) fail(line, "only branches have a predicate here");
    statements_.push_back(made);
  }

  static bool is_register(const std::string& word) { return word[0] == '%' && word.find('.') == std::string::npos; }
  static bool is_jump(const Statement& s) {
    return s.opcode == "bra" || s.opcode == "bra.uni" || s.opcode == "ret" || s.opcode == "exit" || s.opcode == "trap";
  }
  static Meeting meeting_of(const std::string& opcode) {
    if (opcode.rfind("shfl.sync", 0) == 0) return Meeting::kShuffle;
    if (opcode == "bar.sync" || opcode == "barrier.sync") return Meeting::kBarrier;
    if (opcode.rfind("barrier.cluster.arrive", 0) == 0) return Meeting::kClusterArrive;
    return opcode.rfind("barrier.cluster.wait", 0) == 0 ? Meeting::kClusterWait : Meeting::kNone;
  }
  static std::string bare(std::string word) {
    if (word[0] == '!') word = word.substr(1);
    return word;
  }
  // Of an operand, a vector or an address.
  static Words registers_of(const std::string& operand) {
    Words found;
    for (size_t at = operand.find('%'); at != std::string::npos; at = operand.find('%', at + 1)) {
      size_t end = at + 1;
      while (end < operand.size() && (std::isalnum(operand[end]) || operand[end] == '_' || operand[end] == '.')) ++end;
      const std::string word = operand.substr(at, end - at);
      if (is_register(word)) found.push_back(word);
    }
    return found;
  }
  static bool writes_first(const Statement& s) {
    return !is_jump(s) && s.opcode.rfind("st.", 0) != 0 && s.opcode.rfind("cp.async", 0) != 0;
  }

  // Blocks begin at labels, behind jumps, and where all lanes have to meet.
  void cut() {
    std::set<size_t> starts{0};
    for (const auto& label : labels_) starts.insert(label.second);
    for (size_t k = 0; k < statements_.size(); ++k) {
      if (is_jump(statements_[k])) starts.insert(k + 1);
      if (meeting_of(statements_[k].opcode) != Meeting::kNone) starts.insert(k);
    }
    starts.erase(statements_.size());
    starts_.assign(starts.begin(), starts.end());
  }
  uint32_t block_at(size_t statement) const {
    return static_cast<uint32_t>(std::upper_bound(starts_.begin(), starts_.end(), statement) - starts_.begin() - 1);
  }

  // A register that one block alone uses, and writes first, gives its place to others after its last use.
  void place_registers() {
    cut();
    struct Use {
      size_t first, last;
      bool written_first, one_block = true;
    };
    std::map<std::string, Use> uses;
    for (size_t k = 0; k < statements_.size(); ++k) {
      const Statement& s = statements_[k];
      const auto use = [&](const std::string& name, bool writes) {
        const auto [at, made] = uses.try_emplace(name, Use{k, k, writes});
        if (!made && block_at(at->second.first) != block_at(k)) at->second.one_block = false;
        at->second.last = k;
      };
      for (size_t o = writes_first(s) ? 1 : 0; o < s.operands.size(); ++o)
        for (const std::string& name : registers_of(s.operands[o])) use(name, false);
      if (!s.guard.empty()) use(bare(s.guard), false);
      if (writes_first(s) && !s.operands.empty())
        for (const std::string& name : registers_of(s.operands[0])) use(name, true);
    }
    std::map<size_t, Words> begin, end;
    for (const auto& [name, use] : uses) {
      if (!classes_.count(name)) fail(statements_[use.first].line, "a register that is not declared");
      if (classes_[name] == 'p') {
        places_[name] = kernel_.predicates++;
      } else if (use.one_block && use.written_first) {
        local_.insert(name);
        begin[use.first].push_back(name);
        end[use.last].push_back(name);
      } else {
        places_[name] = room(classes_[name]);
      }
    }
    std::map<char, std::vector<uint32_t>> free;
    for (size_t k = 0; k < statements_.size(); ++k) {
      // What is read for the last time stays where it is until the statement has written.
      for (const std::string& name : begin[k]) {
        std::vector<uint32_t>& own = free[classes_[name]];
        places_[name] = own.empty() ? room(classes_[name]) : own.back();
        if (!own.empty()) own.pop_back();
      }
      for (const std::string& name : end[k]) free[classes_[name]].push_back(places_[name]);
    }
  }
  uint32_t room(char kind) {
    const uint32_t at = kernel_.register_bytes;
    kernel_.register_bytes += bytes_of(kind) * kLanes;
    return at;
  }

  template <typename T>
  uint32_t constant(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    const auto [at, made] = constants_.try_emplace({sizeof value, bits}, 0);
    if (made) {
      at->second = static_cast<uint32_t>(kernel_.constants.size() * 8);
      std::vector<T> lanes(kLanes, value);
      const size_t words = kLanes * sizeof(T) / 8, old = kernel_.constants.size();
      kernel_.constants.resize(old + words);
      std::memcpy(&kernel_.constants[old], lanes.data(), words * 8);
    }
    return at->second | kConstant;
  }

  int64_t number(const Statement& s, const std::string& word) const {
    if (word.rfind("0f", 0) == 0 || word.rfind("0F", 0) == 0) return static_cast<int64_t>(std::stoul(word.substr(2), nullptr, 16));
    if (symbols_.count(word)) return symbols_.at(word);
    if (shared_.count(word)) return kSharedStart;
    size_t used = 0;
    int64_t value = 0;
    try {
      value = word[0] == '-' ? std::stoll(word, &used, 0) : static_cast<int64_t>(std::stoull(word, &used, 0));
    } catch (const std::exception&) {
    }
    if (used != word.size()) fail(s.line, "an operand that is not known, '" + word + "'");
    return value;
  }

  // Where an operand is: `kind` as in Operation.
  uint32_t operand(const Statement& s, const std::string& word, char kind) {
    if (is_register(word)) {
      const char own = classes_.at(word);
      if (own != kind) fail(s.line, "a register of another size than its instruction takes, " + word);
      return places_.at(word);
    }
    if (kind == 'p') {
      if (word == "1" || word == "-1" || word == "0") return word == "0" ? kConstant : kConstant | 1;
      fail(s.line, "a predicate that is not known, '" + word + "'");
    }
    const int64_t value = number(s, word);
    if (kind == 'h') return constant(static_cast<uint16_t>(value));
    if (kind == 'w') return constant(static_cast<uint32_t>(value));
    return constant(static_cast<uint64_t>(value));
  }

  char class_at(const Statement& s, size_t k) const {
    if (k >= s.operands.size()) return 0;
    const Words names = registers_of(s.operands[k]);
    return names.empty() ? 0 : classes_.at(names[0]);
  }

  static Words parts(const std::string& operand) {
    if (operand[0] == '{') return split(operand.substr(1, operand.size() - 2));
    const size_t bar = operand.find('|');
    return bar == std::string::npos ? Words{operand} : Words{trimmed(operand.substr(0, bar)), trimmed(operand.substr(bar + 1))};
  }

  // "[%rd1+8]": a register, a parameter or shared memory, and an offset.
  void address(const Statement& s, const std::string& word, uint32_t& base, int64_t& offset, char kind) {
    const std::string inside = word.substr(1, word.size() - 2);
    const size_t plus = inside.find('+');
    const std::string name = trimmed(inside.substr(0, plus));
    base = operand(s, name, kind);
    if (plus != std::string::npos) offset = std::stoll(inside.substr(plus + 1));
  }

  Instruction instruction(const Statement& s, Block& block) {
    const bool special = s.operands.size() == 2 && s.operands[1][0] == '%' && !is_register(s.operands[1]);
    // What is written; of a store, the values.
    const size_t vector = writes_first(s) ? 0 : s.opcode.rfind("st.", 0) == 0 ? 1 : s.operands.size();
    const Operation* operation = find_operation(special ? s.opcode + s.operands[1] : s.opcode, class_at(s, vector),
                                                special ? 0 : class_at(s, 1 - vector));
    if (!operation) fail(s.line, "an instruction that is not known");
    Instruction made{};
    made.run = operation->run;
    made.kind = operation->kind;
    made.line = s.line;
    block.fp32 += operation->fp32;
    uint32_t* const sources[] = {&made.a, &made.b, &made.c, &made.d[3]};
    size_t source = 0, at = 0;
    for (const char* kind = operation->operands.c_str(); *kind; ++kind, ++at) {
      const bool memory = *kind == '[';
      if (memory) ++kind;
      if (at >= s.operands.size()) fail(s.line, "an operand is missing");
      const std::string& word = s.operands[at];
      if (memory) address(s, word, *sources[source++], made.offset, *kind);
      else if (at == vector) results(s, word, *kind, made);
      else *sources[source++] = operand(s, word, *kind);
    }
    return made;
  }

  void results(const Statement& s, const std::string& word, char kind, Instruction& made) {
    const Words vector = parts(word);
    if (vector.size() > 4) fail(s.line, "a vector of more than four");
    made.local = writes_first(s);
    for (size_t k = 0; k < vector.size(); ++k) {
      const bool beside = k == 1 && word[0] != '{';  // a predicate
      made.d[k] = operand(s, vector[k], beside ? 'p' : kind);
      if (!beside && !local_.count(vector[k])) made.local = false;
    }
  }

  void emit() {
    for (size_t b = 0; b < starts_.size(); ++b) {
      Block block;
      block.first = static_cast<uint32_t>(kernel_.code.size());
      const size_t end = b + 1 < starts_.size() ? starts_[b + 1] : statements_.size();
      block.line = statements_[starts_[b]].line;
      block.meeting = meeting_of(statements_[starts_[b]].opcode);
      for (size_t k = starts_[b]; k < end; ++k) {
        const Statement& s = statements_[k];
        const Meeting meeting = meeting_of(s.opcode);
        if (is_jump(s)) {
          jump(s, block);
          ++block.kinds[static_cast<int>(Kind::kBranch)];
        } else if (meeting != Meeting::kNone && meeting != Meeting::kShuffle) {
          ++block.kinds[static_cast<int>(Kind::kBarrier)];
        } else {
          kernel_.code.push_back(instruction(s, block));
          ++block.kinds[static_cast<int>(kernel_.code.back().kind)];
        }
      }
      block.last = static_cast<uint32_t>(kernel_.code.size());
      kernel_.blocks.push_back(block);
    }
  }

  void jump(const Statement& s, Block& block) {
    if (s.opcode == "ret" || s.opcode == "exit" || s.opcode == "trap") {
      block.jump = s.opcode == "trap" ? Jump::kTrap : Jump::kExit;
      return;
    }
    const auto label = labels_.find(s.operands.at(0));
    if (label == labels_.end()) fail(s.line, "a label that is nowhere");
    block.target = block_at(label->second);
    block.jump = s.guard.empty() ? Jump::kAlways : s.guard[0] == '!' ? Jump::kIfNot : Jump::kIf;
    if (!s.guard.empty()) block.predicate = operand(s, bare(s.guard), 'p');
  }

  const Words& lines_;
  const std::set<std::string>& shared_;  // the names of dynamic shared memory
  Kernel& kernel_;
  std::vector<Statement> statements_;
  std::map<std::string, size_t> labels_;
  std::unordered_map<std::string, char> classes_;
  std::unordered_map<std::string, uint32_t> places_, symbols_;
  std::set<std::string> local_;
  std::vector<size_t> starts_;
  std::map<std::pair<size_t, uint64_t>, uint32_t> constants_;
};

}  // namespace

Module parse(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  Module module;
  std::set<std::string> shared;
  for (uint32_t line = 1; line <= lines.size();) {
    const std::string& own = lines[line - 1];
    if (own.rfind(".target sm_", 0) == 0) module.architecture = std::stoi(own.substr(11));
    if (own.rfind(".extern .shared", 0) == 0) {
      const size_t name = own.rfind(' ') + 1;
      shared.insert(own.substr(name, own.find('[') - name));
    }
    if (own.find(".entry") == std::string::npos) {
      ++line;
      continue;
    }
    Kernel kernel;
    Reader reader(lines, shared, kernel);
    line = reader.read(line);
    module.kernels.emplace(kernel.name, std::move(kernel));
  }
  return module;
}

}  // namespace ptx
