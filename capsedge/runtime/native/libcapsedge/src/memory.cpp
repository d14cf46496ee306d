// The library's own operator new: blocks that are freed are kept by the thread that freed them, up to 1 MiB a size, for
// its next call. An inference needs the same few vectors every time (shapes, lists of tensors), so that after the
// first ones nothing here asks the system for memory, and calls take even time. Hidden: programs keep their own.
//
// Left out of builds with sanitizers, which must see every block.

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

constexpr size_t kLeast = 64;          // sizes are rounded up to this times a power of two
constexpr unsigned kSizes = 13;        // up to 256 KiB
constexpr size_t kKept = 1024 * 1024;  // bytes of a size, and no more than
constexpr size_t kMostBlocks = 64;

// The smallest size that holds so many bytes; kSizes or more if none does.
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

// Without a constructor, so that a look at it costs nothing.
thread_local Cache cache;

// Gives the blocks back when the thread ends.
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
  // malloc may have given more than was asked for, never less.
  const size_t usable = malloc_usable_size(memory);
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
