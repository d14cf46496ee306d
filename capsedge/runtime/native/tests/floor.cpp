// What this machine can do at most: multiply-adds per second and bytes per second, on one line of JSON.
//   capsedge_floor THREADS
// Each is the best of several short runs. Bandwidth is that of reading memory too large for any cache.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include "simd/features.h"
#endif

namespace {

// Ten independent chains keep two units of latency four or five busy. A macro, because a function compiled for one
// instruction set is not inlined into one for another.
#define CAPSEDGE_CHAINS(name, target, lanes)                                  \
  typedef float Vector_##name __attribute__((vector_size(4 * lanes)));       \
  target float name(int64_t rounds) {                                        \
    Vector_##name x[10];                                                     \
    for (int i = 0; i < 10; ++i) x[i] = Vector_##name{} + 1e-3f * static_cast<float>(i); \
    const Vector_##name a = Vector_##name{} + 0.999999f, b = Vector_##name{} + 1e-6f;    \
    for (int64_t r = 0; r < rounds; ++r) {                                   \
      _Pragma("GCC unroll 10") for (int i = 0; i < 10; ++i) x[i] = x[i] * a + b;         \
    }                                                                        \
    for (int i = 1; i < 10; ++i) x[0] += x[i];                               \
    return x[0][0];                                                          \
  }

typedef float V4 __attribute__((vector_size(16)));
CAPSEDGE_CHAINS(chains_any, , 4)
#ifdef __x86_64__
CAPSEDGE_CHAINS(chains_avx2, __attribute__((target("avx2,fma"))), 8)
CAPSEDGE_CHAINS(chains_avx512, __attribute__((target("avx512f,avx512vl,fma"))), 16)
#endif

struct Kernel {
  float (*run)(int64_t);
  int lanes;
};

Kernel best_kernel() {
#ifdef __x86_64__
  const capsedge::Features here = capsedge::features_here();
  if (here.avx512) return {chains_avx512, 16};
  if (here.avx2) return {chains_avx2, 8};
#endif
  return {chains_any, 4};
}

template <typename F>
double best_seconds(int threads, int attempts, F&& f) {
  double best = 1e9;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> helpers;
    for (int t = 1; t < threads; ++t) helpers.emplace_back([&f, t] { f(t); });
    f(0);
    for (std::thread& helper : helpers) helper.join();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  const int threads = count > 1 ? std::max(1, std::atoi(words[1])) : 1;
  const Kernel kernel = best_kernel();
  std::atomic<float> sink{0};

  constexpr int64_t kRounds = 100000;
  const double fma_seconds = best_seconds(threads, 200, [&](int) { sink = kernel.run(kRounds); });
  const double fma_rate = static_cast<double>(kRounds) * 10 * kernel.lanes * threads / fma_seconds;

  constexpr size_t kFloats = 64u << 20;  // 256 MB
  std::vector<float> memory(kFloats, 1.0f);
  const double read_seconds = best_seconds(threads, 12, [&](int t) {
    const size_t part = kFloats / static_cast<size_t>(threads);
    const float* from = memory.data() + part * static_cast<size_t>(t);
    V4 total[8] = {};
    for (size_t i = 0; i + 32 <= part; i += 32)
      for (size_t k = 0; k < 8; ++k) {
        V4 x;
        __builtin_memcpy(&x, from + i + 4 * k, sizeof x);
        total[k] += x;
      }
    for (size_t k = 1; k < 8; ++k) total[0] += total[k];
    sink = total[0][0];
  });
  std::printf("{\"threads\": %d, \"lanes\": %d, \"multiply_adds_per_second\": %.4g, \"bytes_per_second\": %.4g}\n", threads,
              kernel.lanes, fma_rate, static_cast<double>(kFloats) * 4 / read_seconds);
  return 0;
}
