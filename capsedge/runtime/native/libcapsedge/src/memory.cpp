// The library's own operator new. A thread keeps the blocks that it frees, up to 1 MiB per size, for its next call.
// Every inference needs the same few vectors (shapes, lists of tensors), so after the first ones no call requests
// memory from the system, and latency is even. Hidden: programs keep their own operator new.
//
// Omitted from builds with sanitizers, which must see every block.

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "system/usable_size.h"

namespace {

constexpr size_t kLeast = 64;          // sizes are rounded up to a power of two times this
constexpr unsigned kSizes = 13;        // up to 256 KiB
constexpr size_t kKept = 1024 * 1024;  // maximum bytes kept per size
constexpr size_t kMostBlocks = 64;

// The smallest size that holds this many bytes; kSizes or more if none does.
unsigned place_for(size_t bytes) {
  return bytes <= kLeast ? 0 : 64 - static_cast<unsigned>(__builtin_clzll((bytes - 1) / kLeast));
}

size_t most_of(unsigned place) { return std::min(kMostBlocks, kKept / (kLeast << place)); }

struct Block {
  Block* next;
};

struct Cache {
  Block* blocks[kSizes];
  size_t counts[kSizes];
  bool ended;
};

// Without a constructor, so that accessing it costs nothing.
thread_local Cache cache;

// Returns the blocks to the system when the thread ends.
struct Keeper {
  void start() {}
  ~Keeper() {
    cache.ended = true;
    for (Block*& first : cache.blocks)
      while (first != nullptr) std::free(std::exchange(first, first->next));
  }
};
thread_local Keeper keeper;

void* take(size_t size) {
  const unsigned place = place_for(size);
  if (place >= kSizes) return std::malloc(size);
  Block*& first = cache.blocks[place];
  if (first == nullptr) return std::malloc(kLeast << place);
  --cache.counts[place];
  return std::exchange(first, first->next);
}

void give(void* memory) {
  if (memory == nullptr) return;
  // malloc may have returned more than was requested, never less.
  const size_t usable = capsedge::usable_size(memory);
  const unsigned place = 63 - static_cast<unsigned>(__builtin_clzll(usable / kLeast | 1));
  if (usable < kLeast || place >= kSizes || cache.ended || cache.counts[place] >= most_of(place)) {
    std::free(memory);
    return;
  }
  keeper.start();
  ++cache.counts[place];
  auto* const block = static_cast<Block*>(memory);
  block->next = cache.blocks[place];
  cache.blocks[place] = block;
}

}  // namespace

void* operator new(size_t size) {
  if (void* const memory = take(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t size) { return ::operator new(size); }
void operator delete(void* memory) noexcept { give(memory); }
void operator delete[](void* memory) noexcept { give(memory); }
void operator delete(void* memory, size_t) noexcept { give(memory); }
void operator delete[](void* memory, size_t) noexcept { give(memory); }
