// Frames of cameras as RGB.
#pragma once

#include "capsedge.h"

namespace capsedge::libcapsedge {

// Writes [height, width, 3]. Errors (CAPSEDGE_USAGE): a frame that is wrong, or `bytes` that are too few.
void frame_to_rgb(const capsedge_frame& frame, uint8_t* rgb, size_t bytes);

}  // namespace capsedge::libcapsedge
