// Any machine: four floats at a time, in whatever registers the compiler's target has.
#define CAPSEDGE_LEVEL plain
#define CAPSEDGE_TABLE kLevel_plain
#define CAPSEDGE_PLAIN 1
#define CAPSEDGE_WIDTH 4
#include "kernels.h"
