// What the requests of warps take of the memories: sectors of global memory, turns of the banks of shared memory.
#include "machine.h"

namespace ptx {

// Distinct 32-byte sectors of the active lanes; no access straddles two, for addresses are aligned.
void count_sectors(Warp& w, const uint64_t* at, bool same) {
  Counts& counts = w.cta->launch->counts;
  ++counts.global_requests;
  if (same) {
    ++counts.sectors;
    return;
  }
  uint64_t seen[kLanes];
  int number = 0;
  uint64_t before = ~0ull;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t sector = at[l] / 32;
    if (!(w.mask >> l & 1) || sector == before) continue;
    before = sector;
    bool known = false;
    for (int k = 0; k < number && !known; ++k) known = seen[k] == sector;
    if (!known) seen[number++] = sector;
  }
  counts.sectors += static_cast<uint64_t>(number);
}

// Turns of the banks: as many as the fullest bank has different words. Phased: where 8 and 16 bytes a lane go by halves and
// quarters of a warp. NVIDIA documents neither way for all patterns: the first is the least that the banks allow.
static int turns_of(const Warp& w, const uint64_t* at, int words, int first, int last, int& different) {
  uint64_t seen[32][kLanes];
  int number[32] = {}, most = 0;
  different = 0;
  for (int l = first; l < last; ++l) {
    if (!(w.mask >> l & 1)) continue;
    for (int k = 0; k < words; ++k) {
      const uint64_t word = at[l] / 4 + static_cast<uint64_t>(k);
      const int bank = static_cast<int>(word % 32);
      bool known = false;
      for (int n = 0; n < number[bank] && !known; ++n) known = seen[bank][n] == word;
      if (known) continue;
      seen[bank][number[bank]++] = word;
      ++different;
      most = most < number[bank] ? number[bank] : most;
    }
  }
  return most;
}
void count_turns(Warp& w, const uint64_t* at, int size, bool same) {
  Counts& counts = w.cta->launch->counts;
  ++counts.shared_requests;
  const int words = size < 4 ? 1 : size / 4, phase = kLanes / words;
  if (same) {
    ++counts.turns;
    ++counts.phased_turns;
    ++counts.least_turns;
    return;
  }
  int different = 0, ignored = 0;
  counts.turns += static_cast<uint64_t>(turns_of(w, at, words, 0, kLanes, different));
  counts.least_turns += static_cast<uint64_t>((different + 31) / 32);
  for (int first = 0; first < kLanes; first += phase)
    counts.phased_turns += static_cast<uint64_t>(turns_of(w, at, words, first, first + phase, ignored));
}

}  // namespace ptx
