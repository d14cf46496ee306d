#include "dispatch.h"

#include <cstdlib>
#ifdef CAPSEDGE_X86
#include "features.h"
#endif
#ifdef CAPSEDGE_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "support/error.h"

namespace capsedge {

extern const Level kLevel_plain;
#ifdef CAPSEDGE_X86
extern const Level kLevel_avx2;
extern const Level kLevel_avx512;
extern const ConvKernels kConv_avx512vnni;
#endif
#ifdef CAPSEDGE_AMX
extern const ConvKernels kConv_amx;
#endif
#ifdef CAPSEDGE_ARM64
extern const Level kLevel_neon;
#endif

#ifdef CAPSEDGE_X86
namespace {

// AVX-512 with different integer convolutions.
Level avx512_with(const char* name, const ConvKernels& conv) {
  Level made = kLevel_avx512;
  made.name = name;
  made.conv = conv;
  return made;
}

const Level& avx512vnni() {
  static const Level level = avx512_with("avx512vnni", kConv_avx512vnni);
  return level;
}

#ifdef CAPSEDGE_AMX
const Level& amx() {
  static const Level level = avx512_with("amx", kConv_amx);
  return level;
}

// Whether the system lets this process use its tiles.
bool may_use_tiles() {
  constexpr long kRequest = 0x1023, kContents = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequest, kContents) == 0;
}
#endif

}  // namespace
#endif

const std::vector<const Level*>& levels_here() {
  static const std::vector<const Level*> levels = [] {
    std::vector<const Level*> found{&kLevel_plain};
#ifdef CAPSEDGE_X86
    const Features here = features_here();
    if (here.avx2) found.push_back(&kLevel_avx2);
    if (here.avx512) found.push_back(&kLevel_avx512);
    if (here.avx512vnni) found.push_back(&avx512vnni());
#ifdef CAPSEDGE_AMX
    if (here.tiles && may_use_tiles()) found.push_back(&amx());
#endif
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
