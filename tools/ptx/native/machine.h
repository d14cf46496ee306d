// A GPU's threads on the host: the lanes of a warp in step, warps one after another as far as their next barrier.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>

#include "memory.h"
#include "program.h"

namespace ptx {

struct Limits {
  int architecture, multiprocessors;
  int warps, blocks, registers, shared;  // of a multiprocessor
  int shared_opt_in;                     // of a block
  bool clusters() const { return architecture >= 90; }
};
// Null if there are none of such an architecture.
const Limits* limits_of(int architecture);

struct Size {
  int64_t x = 1, y = 1, z = 1;
  int64_t all() const { return x * y * z; }
};

// What a launch did, over all its blocks.
struct Counts {
  std::array<uint64_t, kKinds> issued{}, lanes{};  // instructions of warps, and of their active lanes
  uint64_t fp32 = 0;                               // of warps, on the FP32 units
  uint64_t global_requests = 0, sectors = 0;       // of warps; 32 bytes each
  // Turns of the 32 banks; phased, by parts of a warp; the least, without conflicts.
  uint64_t shared_requests = 0, turns = 0, phased_turns = 0, least_turns = 0;
  uint64_t divergent = 0;                          // branches that split a warp
};

struct Launch {
  const Kernel* kernel;
  Size grid;
  int threads = 0, cluster = 1;  // blocks in y
  uint32_t shared = 0;           // bytes
  std::vector<char> arguments;
  Counts counts;
  uint32_t first_serial = 0;
};

struct Cta;

struct Copy {
  uint32_t to;       // in shared memory
  const char* from;
  int lane;
};

struct Group {
  uint32_t block, mask;
};

struct Warp {
  char* registers = nullptr;
  const char* constants = nullptr;
  uint32_t* predicates = nullptr;
  uint32_t mask = 0, exited = 0, all = 0;
  alignas(32) int32_t active[kLanes] = {};  // the mask, a lane each
  uint32_t block = 0;
  bool at_barrier = false, resumed = false, arrived = false;
  int number = 0;
  Cta* cta = nullptr;
  std::vector<Group> groups;  // that wait for others to come to where they are
  std::vector<Copy> copies;   // on their way into shared memory

  template <typename T>
  const T* at(uint32_t operand) const {
    return reinterpret_cast<const T*>(operand & kConstant ? constants + (operand & ~kConstant) : registers + operand);
  }
  template <typename T>
  T* to(uint32_t operand) {
    return reinterpret_cast<T*>(registers + operand);
  }
  void use(uint32_t lanes);
  Access access(int lane) const;
};

// One block.
struct Cta {
  Launch* launch = nullptr;
  int64_t x = 0, y = 0;
  int rank = 0;  // in its cluster
  uint32_t serial = 0;
  uint16_t epoch = 0;
  std::vector<uint16_t> cluster_epochs;  // the epoch after each of the cluster's barriers
  int read_by_others = -1;               // the cluster's barriers passed when another block last read this one's memory
  std::vector<char> shared;
  std::vector<Cell> cells;    // one for each four bytes
  std::vector<bool> flying;   // under an asynchronous copy
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Cta>>* cluster = nullptr;
  struct Machine* machine = nullptr;
};

struct Machine {
  const Limits* limits = nullptr;
  Memory memory;
  int gpu = 0;  // that runs the kernel
  uint32_t next_serial = 1;
  bool checks = true;

  // Runs all blocks. Throws Fault.
  void run(Launch& launch);

 private:
  void run_cluster(Launch& launch, int64_t x, int64_t y);
  void run_warp(Warp& warp);
  bool settle(Warp& warp);
  bool cluster_barrier();

  std::vector<std::unique_ptr<Cta>> cluster_;
  std::vector<uint64_t> issued_, lanes_;  // by block of the code
  std::vector<char> registers_;
  std::vector<uint32_t> predicates_;
};

// For the instructions: an access of one lane to shared memory; bytes, or a Fault.
char* shared_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes);
char* generic_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes);
char* global_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes);
void start_copy(const Instruction& i, Warp& w, int lane, uint64_t to, uint64_t from);
void finish_copies(const Instruction& i, Warp& w);
// Counts a request of a warp's active lanes; `same`: all have one address.
void count_sectors(Warp& w, const uint64_t* at, bool same);
void count_turns(Warp& w, const uint64_t* at, int size, bool same);
[[noreturn]] void fault(const Instruction& i, const Warp& w, int lane, int code, const std::string& why);

// Of generic addresses: those of shared memory, by the block's rank.
constexpr uint64_t kWindow = 1ull << 60;
inline uint64_t in_window(uint64_t rank, uint64_t offset) { return kWindow | rank << 32 | offset; }

}  // namespace ptx
