// x86 with AVX2, FMA and F16C.
#define CAPSEDGE_LEVEL avx2
#define CAPSEDGE_TABLE kLevel_avx2
#define CAPSEDGE_AVX2 1
#define CAPSEDGE_WIDTH 8
#include "kernels.h"
