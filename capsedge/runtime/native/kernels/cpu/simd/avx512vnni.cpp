// x86 with AVX-512 VNNI in addition: only integer code differs from avx512.
#define CAPSEDGE_LEVEL avx512vnni
#define CAPSEDGE_AVX512 1
#define CAPSEDGE_VNNI 1
#define CAPSEDGE_WIDTH 16
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "conv.h"

namespace capsedge {

extern const ConvKernels kConv_avx512vnni;
const ConvKernels kConv_avx512vnni = avx512vnni::kConv;

}  // namespace capsedge
