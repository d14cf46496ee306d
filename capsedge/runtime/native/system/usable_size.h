// How many bytes a block of malloc has.
#pragma once

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

#include <cstddef>

namespace capsedge {

inline size_t usable_size(void* memory) {
#if defined(_WIN32)
  return _msize(memory);
#elif defined(__APPLE__)
  return malloc_size(memory);
#else
  return malloc_usable_size(memory);
#endif
}

}  // namespace capsedge
