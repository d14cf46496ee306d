// What an x86 processor has and the operating system saves. Not asked of __builtin_cpu_supports: that answers from the
// compiler's run-time library, and zig's (0.17) is a stub that says no to everything.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace capsedge {

// The registers that say it, as the processor fills them; zero where it has no such leaf.
struct CpuRegisters {
  uint32_t leaf1_c = 0, leaf7_b = 0, leaf7_c = 0, leaf7_d = 0, leaf7_1_a = 0;
  uint64_t xcr0 = 0;  // what the system saves when it switches between threads
};

// Each includes the one above it, except AVX-VNNI.
struct Features {
  bool avx2 = false;        // with FMA and F16C
  bool avx512 = false;      // F, BW, DQ and VL
  bool avx512vnni = false;
  bool tiles = false;       // of bytes; a process must still ask the system for them
  bool avxvnni = false;     // of AVX2
};

inline CpuRegisters read_registers() {
  constexpr uint32_t kOsXsave = 1u << 27;
  CpuRegisters r;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return r;
  r.leaf1_c = c;
  if (c & kOsXsave) {
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    r.xcr0 = static_cast<uint64_t>(d) << 32 | a;
  }
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return r;
  r.leaf7_b = b;
  r.leaf7_c = c;
  r.leaf7_d = d;
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) r.leaf7_1_a = a;
  return r;
}

inline Features features(const CpuRegisters& r) {
  constexpr auto all = [](uint64_t value, uint64_t bits) { return (value & bits) == bits; };
  constexpr uint64_t kYmm = 3u << 1, kZmm = 7u << 5, kTileState = 3u << 17;
  constexpr uint32_t kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29, kAvx2 = 1u << 5;
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31, kVnni = 1u << 11;
  constexpr uint32_t kTile = 1u << 24, kTileInt8 = 1u << 25, kAvxVnni = 1u << 4;
  Features found;
  found.avx2 = all(r.xcr0, kYmm) && all(r.leaf1_c, kFma | kAvx | kF16c) && all(r.leaf7_b, kAvx2);
  found.avx512 = found.avx2 && all(r.xcr0, kZmm) && all(r.leaf7_b, kF | kDq | kBw | kVl);
  found.avx512vnni = found.avx512 && all(r.leaf7_c, kVnni);
  found.tiles = found.avx512vnni && all(r.xcr0, kTileState) && all(r.leaf7_d, kTile | kTileInt8);
  found.avxvnni = found.avx2 && all(r.leaf7_1_a, kAvxVnni);
  return found;
}

inline Features features_here() { return features(read_registers()); }

}  // namespace capsedge
