// 64-bit ARM.
#define CAPSEDGE_LEVEL neon
#define CAPSEDGE_TABLE kLevel_neon
#define CAPSEDGE_NEON 1
#define CAPSEDGE_WIDTH 4
#include "kernels.h"
