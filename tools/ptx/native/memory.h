// Memory that kernels may use: what is allocated, what has been written, who used it last.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

// Codes of the CUDA runtime.
constexpr uint64_t kGuard = 4096;  // nobody's, on both sides of an allocation
constexpr int kIllegalAddress = 700, kMisaligned = 716, kLaunchFailure = 719, kIllegalInstruction = 715;

struct Fault : std::runtime_error {
  Fault(int code, const std::string& why) : std::runtime_error(why), code(code) {}
  int code;
};

// Who: blocks have a serial number over all launches, so it tells launches apart too; 0 is nobody.
struct Access {
  uint32_t serial = 0;
  uint16_t thread = 0, epoch = 0;  // barriers passed
};

// The last accesses to a piece of memory; the reads are those of different threads.
struct Cell {
  Access write, read, other;
};

struct Allocation {
  uint64_t address = 0, bytes = 0;  // no bytes: freed
  bool device = true;
  int gpu = 0;  // whose memory it is
  std::unique_ptr<char[]> room;
  std::vector<uint8_t> written;  // by byte, 1 or 0
  std::vector<Cell> cells;       // made by the first kernel that uses it
  int shift = 2;                 // log2 of the bytes of a cell
  bool contains(uint64_t at, uint64_t size) const { return at >= address && at + size <= address + bytes && bytes; }
  char* host() const { return reinterpret_cast<char*>(address); }
  // Two threads may write the halves of a word.
  void halve_cells();
};

class Memory {
 public:
  // Aligned to 256 bytes; null without memory for it.
  Allocation* allocate(uint64_t bytes, bool device, int gpu);
  // False if there is none at this address.
  bool release(uint64_t address);
  // The last one that begins at an address or before it, or null.
  Allocation* before(uint64_t address);
  // That an address lies in, or null.
  Allocation* find(uint64_t address);
  void mark_written(uint64_t address, uint64_t bytes);
  uint64_t in_use(int gpu) { return in_use_[gpu]; }

 private:
  std::map<uint64_t, Allocation*> live_;
  std::vector<std::unique_ptr<Allocation>> all_;  // freed ones keep their address: instructions remember them
  std::map<int, uint64_t> in_use_;
};

}  // namespace ptx
