// Handles that can be checked. The caller holds a number, not an address: a place in a table, and how often that place
// has been used. So closed or invalid handles are detected without dereferencing them, and closing does not wait: the
// last running call frees the object.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "failure.h"

namespace capsedge::libcapsedge {

static_assert(sizeof(void*) == 8, "handles are made for 64-bit addresses");

// `kKind` (1 to 7) distinguishes the tables of a process, `Handle` is the type of the C interface.
template <typename T, typename Handle, uint64_t kKind>
class Handles {
 public:
  explicit Handles(const char* name) : name_(name) {
    for (uint64_t i = 0; i < kMost; ++i) free_[i] = static_cast<uint16_t>(kMost - 1 - i);
  }

  Handle* add(std::unique_ptr<T> object) {
    uint64_t place;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (free_count_ == 0)
        fail_usage("There are too many open handles: " + std::to_string(kMost) + " " + name_ + "s.", "",
                   "Close those that are not needed.");
      place = free_[--free_count_];
    }
    Slot& slot = slots_[place];
    slot.object = object.release();
    // An odd number of uses means open.
    const uint64_t use = (slot.state.load(std::memory_order_relaxed) >> kUsersBits) + 1;
    slot.state.store(use << kUsersBits, std::memory_order_release);
    return reinterpret_cast<Handle*>(use << 16 | place << 4 | kKind);
  }

  // The object for the duration of a call.
  class Hold {
   public:
    Hold(Handles& table, Handle* handle) : table_(table), place_(table.enter(handle)) {}
    ~Hold() { table_.leave(place_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    T& operator*() const { return *table_.slots_[place_].object; }
    T* operator->() const { return table_.slots_[place_].object; }

   private:
    Handles& table_;
    uint64_t place_;
  };

  void close(Handle* handle) {
    const uint64_t place = enter(handle);
    std::atomic<uint64_t>& state = slots_[place].state;
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if (seen >> kUsersBits != use_of(handle)) {  // another thread has just closed it
        leave(place);
        refuse(handle);
      }
    } while (!state.compare_exchange_weak(seen, seen + (uint64_t{1} << kUsersBits), std::memory_order_acq_rel));
    leave(place);
  }

 private:
  static constexpr uint64_t kMost = 4096;
  static constexpr int kUsersBits = 20;
  static constexpr uint64_t kUsers = (uint64_t{1} << kUsersBits) - 1;

  struct Slot {
    std::atomic<uint64_t> state{0};  // uses, then calls under way
    T* object = nullptr;
  };

  static uint64_t use_of(Handle* handle) { return reinterpret_cast<uint64_t>(handle) >> 16; }

  uint64_t enter(Handle* handle) {
    const auto number = reinterpret_cast<uint64_t>(handle);
    const uint64_t place = number >> 4 & (kMost - 1), use = number >> 16;
    if ((number & 15) != kKind || use % 2 == 0) refuse(handle);
    std::atomic<uint64_t>& state = slots_[place].state;
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if (seen >> kUsersBits != use) refuse(handle);
    } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed));
    return place;
  }

  void leave(uint64_t place) {
    Slot& slot = slots_[place];
    const uint64_t left = slot.state.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((left & kUsers) != 0 || (left >> kUsersBits) % 2 == 1) return;
    delete slot.object;
    slot.object = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[free_count_++] = static_cast<uint16_t>(place);
  }

  [[noreturn]] void refuse(Handle* handle) const {
    if (handle == nullptr) fail_usage(std::string("The ") + name_ + " is null.");
    fail_usage(std::string("This is not an open ") + name_ + ".", "It was closed, or is not a handle of this kind.");
  }

  const char* const name_;
  std::array<Slot, kMost> slots_;
  std::mutex mutex_;
  std::array<uint16_t, kMost> free_{};
  uint64_t free_count_ = kMost;
};

}  // namespace capsedge::libcapsedge
