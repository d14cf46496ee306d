// Prints what features.h finds: of this processor, or of each line of standard input, which holds the six registers of
// CpuRegisters in hexadecimal.
#include <cinttypes>
#include <cstdio>

#include "simd/features.h"

static void print(const capsedge::Features& found) {
  std::printf("%s%s%s%s%s\n", found.avx2 ? " avx2" : "", found.avx512 ? " avx512" : "", found.avx512vnni ? " avx512vnni" : "",
              found.tiles ? " tiles" : "", found.avxvnni ? " avxvnni" : "");
}

int main(int count, char**) {
  if (count == 1) return print(capsedge::features_here()), 0;
  capsedge::CpuRegisters r;
  while (std::scanf("%" SCNx32 "%" SCNx32 "%" SCNx32 "%" SCNx32 "%" SCNx32 "%" SCNx64, &r.leaf1_c, &r.leaf7_b, &r.leaf7_c,
                    &r.leaf7_d, &r.leaf7_1_a, &r.xcr0) == 6)
    print(capsedge::features(r));
  return 0;
}
