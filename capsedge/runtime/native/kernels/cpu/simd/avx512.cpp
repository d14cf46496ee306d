// x86 with AVX-512 F, BW, DQ and VL.
#define CAPSEDGE_LEVEL avx512
#define CAPSEDGE_TABLE kLevel_avx512
#define CAPSEDGE_AVX512 1
#define CAPSEDGE_WIDTH 16
// GCC 12 warns about _mm512_undefined in its own header.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels.h"
