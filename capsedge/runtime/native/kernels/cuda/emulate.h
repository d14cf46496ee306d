// Blocks of threads on the host: every thread is a fiber that runs until it waits for others, in an order that is drawn
// anew each time, with some warps running ahead of others. The blocks of a cluster run together, each with its own
// shared memory. This finds wrong indices, missing or divergent barriers, asynchronous copies that are not waited for
// (shared memory is NaN before its block begins, after it ends, and while a copy is under way) and, with every access
// reported by tests/native/races.cpp, accesses of two threads to the same memory without a barrier in between. For
// tests only; slow.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

namespace capsedge {
namespace cuda {

class Emulator {
 public:
  static Emulator& instance() {
    static Emulator emulator;
    return emulator;
  }

  // It determines the order of threads.
  void seed(unsigned value) { random_ = value; }

  // `cluster` divides `blocks_y`: blocks in y that run together.
  void run(int blocks_x, int blocks_y, int cluster, int threads, size_t shared_bytes,
           const std::function<void()>& kernel) {
    kernel_ = &kernel;
    threads_ = threads;
    blocks_x_ = blocks_x;
    ++launches_;
    fibers_.resize(static_cast<size_t>(cluster * threads));
    for (auto& fiber : fibers_)
      if (!fiber) fiber = std::make_unique<Fiber>();
    blocks_.resize(static_cast<size_t>(cluster));
    for (y_ = 0; y_ < blocks_y; y_ += cluster)
      for (x_ = 0; x_ < blocks_x; ++x_) {
        for (OneBlock& block : blocks_) {
          block.shared.assign(shared_bytes / sizeof(float), nanf(""));
          block.warps.assign(static_cast<size_t>((threads + 31) / 32), Warp());
          block.barrier = Barrier();
          block.left = threads;
        }
        run_cluster();
      }
  }

  int thread() const { return current_ % threads_; }
  int threads() const { return threads_; }
  int x() const { return x_; }
  int y() const { return y_ + current_ / threads_; }
  int64_t blocks() const { return blocks_x_; }
  float* shared() { return block().shared.data(); }
  const float* shared_of(const float* here, int y) {
    const OneBlock& other = blocks_.at(static_cast<size_t>(y));
    if (other.left != threads_) fail("a block of a cluster has ended before others have read its memory");
    return other.shared.data() + (here - shared());
  }

  // Copied data arrives when the copying thread waits for it, and no earlier; until then it is NaN.
  void copy_async(float* to, const float* from) {
    for (int k = 0; k < 4; ++k) to[k] = nanf("");
    const Aside aside(*this);
    fiber().copies.push_back({to, from});
  }
  void wait_copies() {
    for (const Copy& copy : fiber().copies)
      for (int k = 0; k < 4; ++k) copy.to[k] = copy.from[k];
    const Aside aside(*this);
    fiber().copies.clear();
  }

  void sync() {
    const Aside aside(*this);
    wait(block().barrier, threads_);
    ++fiber().barriers;
  }
  void sync_cluster() {
    const Aside aside(*this);
    wait(cluster_, static_cast<int>(fibers_.size()));
    ++fiber().barriers;
    ++fiber().cluster_barriers;
  }

  // Broadcasts every lane's value to all lanes of its warp; slots alternate, so one barrier is enough.
  const float* exchange(float value) {
    const Aside aside(*this);
    const int warp = thread() / 32, lane = thread() % 32;
    float* slots = block().warps[static_cast<size_t>(warp)].slots[fiber().turn ^= 1];
    slots[lane] = value;
    const int members = threads_ - warp * 32 < 32 ? threads_ - warp * 32 : 32;
    wait(block().warps[static_cast<size_t>(warp)].barrier, members);
    return slots;
  }

  // The running thread. Barriers order memory accesses, shuffles do not.
  struct Place {
    int64_t launch;
    int x, y, thread;
    int64_t barriers, cluster_barriers;  // passed so far
    int cluster;                         // blocks of a cluster
  };
  Place place() {
    const int blocks = static_cast<int>(blocks_.size());
    return {launches_, x_, y(), thread(), fiber().barriers, fiber().cluster_barriers, blocks};
  }
  // Shared memory; here, blocks that run one after another have the same.
  bool shares(const void* memory) {
    for (const OneBlock& block : blocks_)
      if (memory >= block.shared.data() && memory < block.shared.data() + block.shared.size()) return true;
    return false;
  }
  // Whether kernel code is running and the memory is not private to this thread.
  bool watches(const void* memory) {
    const auto inside = [memory](const void* from, size_t bytes) {
      return memory >= from && memory < static_cast<const char*>(from) + bytes;
    };
    return watching_ && !inside(this, sizeof *this) && !inside(&fiber(), sizeof(Fiber)) &&
           !inside(fiber().stack.get(), kStack);
  }

 private:
  // While it exists, the emulator is running, not the kernel.
  struct Aside {
    explicit Aside(Emulator& emulator) : emulator(emulator) { emulator.watching_ = false; }
    ~Aside() { emulator.watching_ = true; }
    Emulator& emulator;
  };
  struct Barrier {
    int arrived = 0;
    int64_t generation = 0;
  };
  struct Warp {
    Barrier barrier;
    float slots[2][32];
  };
  struct OneBlock {
    std::vector<float> shared;
    std::vector<Warp> warps;
    Barrier barrier;
    int left;  // threads that have not ended
  };
  static constexpr size_t kStack = 128 * 1024;
  struct Copy {
    float* to;
    const float* from;
  };
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};  // pages that are never touched take no memory
    const Barrier* waits = nullptr;
    int64_t generation = 0;
    int turn = 0;
    int64_t barriers = 0, cluster_barriers = 0;
    std::vector<Copy> copies;  // on their way
    bool done = false;
  };

  static void enter() {
    Emulator& self = instance();
    (*self.kernel_)();
    self.watching_ = false;
    if (!self.fiber().copies.empty()) fail("a thread has ended without waiting for its copies");
    self.fiber().done = true;
  }

  Fiber& fiber() { return *fibers_[static_cast<size_t>(current_)]; }
  OneBlock& block() { return blocks_[static_cast<size_t>(current_ / threads_)]; }

  void wait(Barrier& barrier, int members) {
    Fiber& own = fiber();
    if (++barrier.arrived == members) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    own.waits = &barrier;
    own.generation = barrier.generation;
    swapcontext(&own.context, &scheduler_);
    watching_ = false;
    own.waits = nullptr;
  }

  static void fail(const char* why) {
    std::fprintf(stderr, "emulated block: %s\n", why);
    std::abort();
  }

  int random(int below) {
    random_ = random_ * 1664525u + 1013904223u;
    return static_cast<int>((random_ >> 8) % static_cast<unsigned>(below));
  }

  void shuffle(std::vector<int>& numbers) {
    for (int k = static_cast<int>(numbers.size()) - 1; k > 0; --k)
      std::swap(numbers[static_cast<size_t>(k)], numbers[static_cast<size_t>(random(k + 1))]);
  }

  // Runs a thread up to its next barrier; false if it waits or has ended.
  bool run_thread(int number) {
    Fiber& fiber = *fibers_[static_cast<size_t>(number)];
    if (fiber.done || (fiber.waits && fiber.waits->generation == fiber.generation)) return false;
    current_ = number;
    watching_ = true;
    swapcontext(&scheduler_, &fiber.context);
    watching_ = false;
    blocks_[static_cast<size_t>(number / threads_)].left -= fiber.done;
    return true;
  }

  // Runs every thread of some of a block's warps up to its next barrier. Returns how many have ended, or -1 if all
  // wait.
  int run_threads(int number) {
    OneBlock& own = blocks_[static_cast<size_t>(number)];
    const int before = own.left;
    order_.resize(static_cast<size_t>(threads_));
    std::iota(order_.begin(), order_.end(), 0);
    shuffle(order_);
    bool progress = false;
    unsigned slow = static_cast<unsigned>(random(1 << 16));  // warps, modulo 16, that do not run this time
    for (int round = 0; round < 2 && !progress; ++round, slow = 0)
      for (int t : order_)
        if (!(slow >> (t / 32 % 16) & 1)) progress |= run_thread(number * threads_ + t);
    if (own.left == 0) std::fill(own.shared.begin(), own.shared.end(), nanf(""));
    return progress ? before - own.left : -1;
  }

  void run_cluster() {
    cluster_ = Barrier();
    for (auto& fiber : fibers_) {
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.get();
      fiber->context.uc_stack.ss_size = kStack;
      fiber->context.uc_link = &scheduler_;
      fiber->done = false;
      fiber->turn = 0;
      fiber->barriers = fiber->cluster_barriers = 0;
      fiber->waits = nullptr;
      makecontext(&fiber->context, &Emulator::enter, 0);
    }
    const int blocks = static_cast<int>(blocks_.size());
    int left = static_cast<int>(fibers_.size()), ahead = 0;
    while (left) {
      // Usually, one block runs as far ahead as it can.
      if (random(8) == 0) ahead = random(blocks);
      int ended = -1;
      for (int k = 0; k < blocks && ended < 0; ++k) ended = run_threads((ahead + k) % blocks);
      if (ended < 0) fail("threads wait at different barriers, or some have returned");
      left -= ended;
    }
    for (const OneBlock& block : blocks_)
      if (block.barrier.arrived) fail("a barrier was left by some threads only");
    if (cluster_.arrived) fail("a cluster's barrier was left by some threads only");
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<OneBlock> blocks_;  // of the cluster that runs
  Barrier cluster_;
  ucontext_t scheduler_;
  int threads_ = 0, current_ = 0, x_ = 0, y_ = 0;
  int64_t blocks_x_ = 0, launches_ = 0;
  std::vector<int> order_;
  bool watching_ = false;
  unsigned random_ = 1;
};

struct Block {
  int thread() const { return Emulator::instance().thread(); }
  int threads() const { return Emulator::instance().threads(); }
  int x() const { return Emulator::instance().x(); }
  int y() const { return Emulator::instance().y(); }
  int64_t blocks() const { return Emulator::instance().blocks(); }
  void sync() const { Emulator::instance().sync(); }
  void copy_async(float* to, const float* from) const { Emulator::instance().copy_async(to, from); }
  void wait_copies() const { Emulator::instance().wait_copies(); }
  float* shared() const { return Emulator::instance().shared(); }
  void sync_cluster() const { Emulator::instance().sync_cluster(); }
  const float* shared_of(const float* here, int y) const { return Emulator::instance().shared_of(here, y); }
  float group_max(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return fmaxf(a, b); });
  }
  float group_sum(float value, int width) const {
    return reduce(value, width, [](float a, float b) { return a + b; });
  }

 private:
  // In the order of the shuffles: pairs at half the width, then a quarter, ...
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
