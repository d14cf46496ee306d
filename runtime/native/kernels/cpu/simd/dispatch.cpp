#include "dispatch.h"

#include <cstdlib>
#ifdef CAPSEDGE_X86
#include <cpuid.h>
#endif

#include "support/error.h"

namespace capsedge {

extern const Level kLevel_plain;
#ifdef CAPSEDGE_X86
extern const Level kLevel_avx2;
extern const Level kLevel_avx512;
extern const ConvKernels kConv_avx512vnni;
#endif
#ifdef CAPSEDGE_ARM64
extern const Level kLevel_neon;
#endif

#ifdef CAPSEDGE_X86
namespace {

const Level& avx512vnni() {
  static const Level level = [] {
    Level made = kLevel_avx512;
    made.name = "avx512vnni";
    made.conv = kConv_avx512vnni;
    return made;
  }();
  return level;
}

// Not every compiler that is supported knows F16C in __builtin_cpu_supports: Clang 14 does not.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

}  // namespace
#endif

const std::vector<const Level*>& levels_here() {
  static const std::vector<const Level*> levels = [] {
    std::vector<const Level*> found{&kLevel_plain};
#ifdef CAPSEDGE_X86
    // These builtins also ask whether the operating system keeps the wide registers.
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      found.push_back(&kLevel_avx2);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        found.push_back(&kLevel_avx512);
        if (__builtin_cpu_supports("avx512vnni")) found.push_back(&avx512vnni());
      }
    }
#endif
#ifdef CAPSEDGE_ARM64
    found.push_back(&kLevel_neon);  // part of every 64-bit ARM
#endif
    return found;
  }();
  return levels;
}

const Level& choose_level() {
  const auto& levels = levels_here();
  const char* wanted = std::getenv("CAPSEDGE_SIMD");
  if (wanted == nullptr || *wanted == '\0') return *levels.back();
  std::string names;
  for (const Level* level : levels) {
    if (std::string(wanted) == level->name) return *level;
    names += (names.empty() ? "" : ", ") + std::string(level->name);
  }
  throw Error("CAPSEDGE_SIMD is '" + std::string(wanted) + "', but this machine runs " + names +
              ": unset it or set it to one of these");
}

const Level& level_for(const Level& chosen, int64_t parents) {
#ifdef CAPSEDGE_X86
  if (chosen.width > kLevel_avx2.width && parents <= kLevel_avx2.width) return kLevel_avx2;
#endif
  (void)parents;
  return chosen;
}

}  // namespace capsedge
