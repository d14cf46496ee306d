// Races of emulated blocks. The kernels are compiled with g++'s -fsanitize=thread, which calls a function before every
// access to memory; here are these functions, in place of the thread sanitizer's own. Two accesses of different threads to
// the same memory, one of them a write, are ordered by a barrier of their block or their cluster between them and by
// nothing else: not by a shuffle, and not by the order in which fibers happen to run. The first pair without one ends the
// process.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "emulate.h"

namespace {

using Place = capsedge::cuda::Emulator::Place;

bool same_thread(const Place& a, const Place& b) { return a.x == b.x && a.y == b.y && a.thread == b.thread; }

bool ordered(const Place& a, const Place& b, bool shared) {
  if (a.launch != b.launch || same_thread(a, b)) return true;
  if (a.x != b.x || a.y / a.cluster != b.y / b.cluster) return shared;  // other blocks have other shared memory
  return a.y == b.y ? a.barriers != b.barriers : a.cluster_barriers != b.cluster_barriers;
}

// What has been done to two bytes: no element of a tensor is smaller but INT8 weights, which nobody writes.
struct History {
  Place write{}, read{}, other_read{};  // the last ones, the reads of different threads; launch 0 is none
};

[[noreturn]] void report(const char* what, const Place& a, const Place& b) {
  std::fprintf(stderr, "race: thread %d of block (%d, %d) %s what thread %d of block (%d, %d) uses, with no barrier between\n",
               b.thread, b.x, b.y, what, a.thread, a.x, a.y);
  std::abort();
}

void access(const void* memory, size_t bytes, bool writes) {
  static std::unordered_map<uintptr_t, History> histories;
  static int64_t launch = 0;
  static bool busy = false;
  if (busy) return;  // the emulator itself may have been compiled with calls of these functions
  busy = true;
  capsedge::cuda::Emulator& emulator = capsedge::cuda::Emulator::instance();
  if (emulator.watches(memory)) {
    const Place now = emulator.place();
    if (now.launch != launch) histories.clear();
    launch = now.launch;
    const bool shared = emulator.shares(memory);
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory) / 2;
    for (uintptr_t at = first; at <= first + (bytes - 1) / 2; ++at) {
      History& known = histories[at];
      if (!ordered(known.write, now, shared)) report(writes ? "writes" : "reads", known.write, now);
      if (writes) {
        for (const Place& read : {known.read, known.other_read})
          if (!ordered(read, now, shared)) report("writes", read, now);
        known.write = now;
      } else {
        if (!same_thread(known.read, now)) known.other_read = known.read;
        known.read = now;
      }
    }
  }
  busy = false;
}

}  // namespace

#define CAPSEDGE_HOOKS(bytes)                                                            \
  void __tsan_read##bytes(void* memory) { access(memory, bytes, false); }                \
  void __tsan_write##bytes(void* memory) { access(memory, bytes, true); }                \
  void __tsan_unaligned_read##bytes(const void* memory) { access(memory, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* memory) { access(memory, bytes, true); }

extern "C" {
CAPSEDGE_HOOKS(1)
CAPSEDGE_HOOKS(2)
CAPSEDGE_HOOKS(4)
CAPSEDGE_HOOKS(8)
CAPSEDGE_HOOKS(16)
void __tsan_init() {}
void __tsan_read_range(void* memory, uintptr_t bytes) {
  if (bytes) access(memory, bytes, false);
}
void __tsan_write_range(void* memory, uintptr_t bytes) {
  if (bytes) access(memory, bytes, true);
}
// Of variables that are made once.
uint8_t __tsan_atomic8_load(const volatile uint8_t* memory, int) { return *memory; }
void __tsan_vptr_update(void**, void*) {}
}
