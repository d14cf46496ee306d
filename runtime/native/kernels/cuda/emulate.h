// Blocks of threads on the host: every thread is a fiber that runs until it waits for others. Finds wrong indices and
// missing or divergent barriers (memory between threads is filled with NaN, fibers run in changing order), not races
// inside a warp. For tests; slow.
#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace capsedge {
namespace cuda {

class Emulator {
 public:
  static Emulator& instance() {
    static Emulator emulator;
    return emulator;
  }

  void run(int blocks_x, int blocks_y, int threads, size_t shared_bytes, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    threads_ = threads;
    blocks_x_ = blocks_x;
    fibers_.resize(static_cast<size_t>(threads));
    for (auto& fiber : fibers_)
      if (!fiber) fiber = std::make_unique<Fiber>();
    warps_.resize(static_cast<size_t>((threads + 31) / 32));
    for (y_ = 0; y_ < blocks_y; ++y_)
      for (x_ = 0; x_ < blocks_x; ++x_) {
        shared_.assign(shared_bytes / sizeof(float), nanf(""));
        run_block();
      }
  }

  int thread() const { return current_; }
  int threads() const { return threads_; }
  int x() const { return x_; }
  int y() const { return y_; }
  int64_t blocks() const { return blocks_x_; }
  float* shared() { return shared_.data(); }

  void sync() { wait(block_, threads_); }

  // Every lane's value to all lanes of its warp; slots alternate, so one barrier is enough.
  const float* exchange(float value) {
    const int warp = current_ / 32, lane = current_ % 32;
    Fiber& fiber = *fibers_[static_cast<size_t>(current_)];
    float* slots = warps_[static_cast<size_t>(warp)].slots[fiber.turn ^= 1];
    slots[lane] = value;
    const int members = threads_ - warp * 32 < 32 ? threads_ - warp * 32 : 32;
    wait(warps_[static_cast<size_t>(warp)].barrier, members);
    return slots;
  }

 private:
  struct Barrier {
    int arrived = 0;
    int64_t generation = 0;
  };
  struct Warp {
    Barrier barrier;
    float slots[2][32];
  };
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(128 * 1024);
    const Barrier* waits = nullptr;
    int64_t generation = 0;
    int turn = 0;
    bool done = false;
  };

  static void enter() {
    Emulator& self = instance();
    (*self.kernel_)();
    self.fibers_[static_cast<size_t>(self.current_)]->done = true;
  }

  void wait(Barrier& barrier, int members) {
    Fiber& fiber = *fibers_[static_cast<size_t>(current_)];
    if (++barrier.arrived == members) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    fiber.waits = &barrier;
    fiber.generation = barrier.generation;
    const int mine = current_;
    swapcontext(&fiber.context, &scheduler_);
    current_ = mine;
    fiber.waits = nullptr;
  }

  void run_block() {
    block_ = Barrier();
    for (Warp& warp : warps_) warp = Warp();
    for (auto& fiber : fibers_) {
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.data();
      fiber->context.uc_stack.ss_size = fiber->stack.size();
      fiber->context.uc_link = &scheduler_;
      fiber->done = false;
      fiber->turn = 0;
      fiber->waits = nullptr;
      makecontext(&fiber->context, &Emulator::enter, 0);
    }
    int left = threads_;
    while (left) {
      bool progress = false;
      random_ = random_ * 1664525u + 1013904223u;
      const int start = static_cast<int>((random_ >> 8) % static_cast<unsigned>(threads_));
      const bool back = (random_ >> 4) & 1u;
      for (int k = 0; k < threads_; ++k) {
        const int t = (start + (back ? threads_ - k : k)) % threads_;
        Fiber& fiber = *fibers_[static_cast<size_t>(t)];
        if (fiber.done || (fiber.waits && fiber.waits->generation == fiber.generation)) continue;
        current_ = t;
        swapcontext(&scheduler_, &fiber.context);
        progress = true;
        if (fiber.done) --left;
      }
      if (!progress) {
        std::fprintf(stderr, "emulated block: threads wait at different barriers, or some have returned\n");
        std::abort();
      }
    }
    if (block_.arrived) {
      std::fprintf(stderr, "emulated block: a barrier was left by some threads only\n");
      std::abort();
    }
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  std::vector<float> shared_;
  Barrier block_;
  ucontext_t scheduler_;
  int threads_ = 0, current_ = 0, x_ = 0, y_ = 0;
  int64_t blocks_x_ = 0;
  unsigned random_ = 1;
};

struct Block {
  int thread() const { return Emulator::instance().thread(); }
  int threads() const { return Emulator::instance().threads(); }
  int x() const { return Emulator::instance().x(); }
  int y() const { return Emulator::instance().y(); }
  int64_t blocks() const { return Emulator::instance().blocks(); }
  void sync() const { Emulator::instance().sync(); }
  float* shared() const { return Emulator::instance().shared(); }
  float group_max(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return fmaxf(a, b); });
  }
  float group_sum(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return a + b; });
  }

 private:
  // As the shuffles do it: pairs at half the width, then a quarter, ...
  template <typename F>
  float reduce(float value, int width, F combine) const {
    float now[32], next[32];
    std::memcpy(now, Emulator::instance().exchange(value), sizeof now);
    for (int offset = width / 2; offset; offset /= 2) {
      for (int lane = 0; lane < 32; ++lane) next[lane] = combine(now[lane], now[lane ^ offset]);
      std::memcpy(now, next, sizeof now);
    }
    return now[thread() % 32];
  }
};

}  // namespace cuda
}  // namespace capsedge
