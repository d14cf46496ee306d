// How large anything that comes from a file may be: those of capsedge/spec/limits.py that are needed here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace capsedge::libcapsedge {

constexpr size_t kJsonBytes = 32u << 20;
constexpr size_t kJsonValues = 500'000;  // fewer than Python's, since they take more memory here; a model has a few hundred
constexpr int kJsonDepth = 32;
constexpr size_t kMetadataBytes = 8u << 20;  // of one model
constexpr size_t kTypicalInputBytes = 4u << 10, kCascadeBytes = 16u << 10, kTraceBytes = 1u << 20;  // of one field of these
constexpr int64_t kRunBytes = int64_t{256} << 20;  // inputs and outputs of one run, as far as the file fixes their sizes

}  // namespace capsedge::libcapsedge
