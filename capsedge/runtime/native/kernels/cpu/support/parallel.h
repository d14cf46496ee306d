// Work divided into pieces for the caller's threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>

namespace capsedge {

// Calls body(user, i) for every i below count, in any order and on any threads, and returns when all calls have
// returned.
struct Threads {
  void (*parallel_for)(void* pool, size_t count, void (*body)(void* user, size_t i), void* user);
  void* pool;
};

// f(i) for every i below count. The first exception of any piece is rethrown here, not through the pool.
template <typename F>
void parallel_for(const Threads& threads, int64_t count, F&& f) {
  if (count <= 0) return;
  if (count == 1) return f(int64_t{0});
  struct Work {
    F& f;
    std::once_flag once;
    std::exception_ptr error;
  } work{f, {}, nullptr};
  threads.parallel_for(
      threads.pool, static_cast<size_t>(count),
      [](void* user, size_t i) {
        Work& work = *static_cast<Work*>(user);
        try {
          work.f(static_cast<int64_t>(i));
        } catch (...) {
          std::call_once(work.once, [&work] { work.error = std::current_exception(); });
        }
      },
      &work);
  if (work.error) std::rethrow_exception(work.error);
}

// Runs one after another if there are no threads.
template <typename F>
void parallel_for(const Threads* threads, int64_t count, F&& f) {
  if (threads) return parallel_for(*threads, count, f);
  for (int64_t i = 0; i < count; ++i) f(i);
}

}  // namespace capsedge
