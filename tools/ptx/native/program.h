// PTX as nvcc writes it, parsed once into blocks of instructions that act on all 32 lanes of a warp.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

constexpr int kLanes = 32;
constexpr uint32_t kFull = 0xffffffffu;
constexpr uint32_t kConstant = 1u << 31;  // of an operand: it lies among the kernel's constants, not in registers
constexpr uint32_t kSharedStart = 1024;   // the system has the first KB, as on compute capability 9.0

struct Allocation;
struct Warp;

// What an instruction is counted as.
enum class Kind : uint8_t { kArithmetic, kLoad, kStore, kShuffle, kBarrier, kDivision, kInteger, kMove, kBranch };
constexpr int kKinds = 9;
extern const char* const kind_names[kKinds];

struct Instruction {
  void (*run)(const Instruction&, Warp&);
  uint32_t d[4] = {}, a = 0, b = 0, c = 0;  // bytes into the registers; predicates by number; vectors have several d
  int64_t offset = 0;                       // added to an address
  bool local = false;                       // what it writes is read in its own block only
  Kind kind = Kind::kInteger;
  uint32_t line = 0;                   // of the PTX
  mutable Allocation* near = nullptr;  // where the last access was
};

enum class Jump : uint8_t { kNext, kAlways, kIf, kIfNot, kExit, kTrap };
enum class Meeting : uint8_t { kNone, kShuffle, kBarrier, kClusterArrive, kClusterWait };  // needs all lanes

struct Block {
  uint32_t first = 0, last = 0;  // instructions
  Meeting meeting = Meeting::kNone;
  Jump jump = Jump::kNext;
  uint32_t predicate = 0, target = 0;
  uint32_t line = 0;
  uint32_t kinds[kKinds] = {};
  uint32_t fp32 = 0;  // of the arithmetic, what a multiprocessor issues to its FP32 units
};

struct Parameter {
  uint32_t offset, size;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<Instruction> code;
  std::vector<Block> blocks;
  std::vector<uint64_t> constants;  // 32 lanes each
  uint32_t register_bytes = 0, predicates = 0;
  int most_threads = 1024;               // __launch_bounds__
  int registers = 0, spills = 0;         // of a thread, by ptxas
  mutable std::vector<uint64_t> executed;  // how often each block was, by warps
  std::vector<std::string> source;       // lines of the PTX, for messages
  uint32_t first_line = 0;
  const std::string& text(uint32_t line) const { return source.at(line - first_line); }
};

struct Module {
  int architecture = 0;
  std::unordered_map<std::string, Kernel> kernels;
};

// Throws std::runtime_error with the line where it meets what it does not know.
Module parse(const std::string& text);

// The function of an opcode such as "add.s32" and what it takes: a letter per operand, the first being written.
// p: predicate, h: 16 bits, w: 32 bits, d: 64 bits, i: an immediate that is not looked at.
struct Operation {
  void (*run)(const Instruction&, Warp&);
  std::string operands;
  Kind kind;
  bool fp32 = false;
};
// `source`: the class of the first register that is read, for conversions and loads. Null if unknown.
const Operation* find_operation(const std::string& opcode, char target, char source);

}  // namespace ptx
