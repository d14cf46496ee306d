// Which SIMD level runs.
#pragma once

#include <string>
#include <vector>

#include "level.h"

namespace capsedge {

// Levels that this machine can run, slowest first. The first is always "plain".
const std::vector<const Level*>& levels_here();

// The fastest, or the one that the environment variable CAPSEDGE_SIMD names. Read at every call, so that a
// process can try one after another. Throws Error for a name that is unknown or that this machine cannot run.
const Level& choose_level();

// The level for this many parents: half a vector of them is not worth 16 lanes.
const Level& level_for(const Level& chosen, int64_t parents);

}  // namespace capsedge
