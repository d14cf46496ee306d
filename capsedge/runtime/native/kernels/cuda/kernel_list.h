// Every kernel, once: its name in the fat binary, its parameters, its bounds, what it calls. Host code numbers the
// names and ignores the rest.
#pragma once

#include <cstdint>

// The types of capsules and of weights, in the order of of_types() in choice.cpp.
#define CAPSEDGE_TYPED(F, ...) \
  F(__VA_ARGS__, f32, f32) F(__VA_ARGS__, f32, i8) F(__VA_ARGS__, f16, f16) F(__VA_ARGS__, f16, i8)

// Passes by rows, columns and parents per lane.
#define CAPSEDGE_PASSES(F, K)                                                                                         \
  CAPSEDGE_TYPED(F, K, Moments, 4, 4, 1) CAPSEDGE_TYPED(F, K, Moments, 4, 4, 2) CAPSEDGE_TYPED(F, K, Moments, 2, 2, 1) \
  CAPSEDGE_TYPED(F, K, Sums, 4, 4, 1) CAPSEDGE_TYPED(F, K, Sums, 4, 4, 2)                                             \
  CAPSEDGE_TYPED(F, K, Sums, 1, 16, 1) CAPSEDGE_TYPED(F, K, Sums, 1, 16, 2) CAPSEDGE_TYPED(F, K, Sums, 1, 8, 1)        \
  CAPSEDGE_TYPED(F, K, OverChildren, 1, 16, 1) CAPSEDGE_TYPED(F, K, OverChildren, 1, 16, 2)                           \
  CAPSEDGE_TYPED(F, K, OverChildren, 1, 8, 1)
// And by rows, columns and units per group.
#define CAPSEDGE_TILES(F, K)                                                                       \
  CAPSEDGE_TYPED(F, K, Moments, 4, 4, 1) CAPSEDGE_TYPED(F, K, Sums, 4, 4, 2)                         \
  CAPSEDGE_TYPED(F, K, Sums, 1, 16, 2) CAPSEDGE_TYPED(F, K, Sums, 1, 8, 2)

#define CAPSEDGE_WHOLE_KERNEL(K, P, R, L, Q, T, W)                                  \
  K(capsedge_whole_kernel_##P##_##R##x##L##x##Q##_##T##_##W, (const Layer layer),   \
    CAPSEDGE_BLOCKS((P<R, L, Q>::kBlocks)), (whole<P<R, L, Q>, T, W>(layer)))
#define CAPSEDGE_PART_KERNEL(K, P, R, L, Q, T, W)                                                \
  K(capsedge_part_kernel_##P##_##R##x##L##x##Q##_##T##_##W, (const Layer layer, int iteration),  \
    CAPSEDGE_BLOCKS((P<R, L, Q>::kBlocks)), (part<P<R, L, Q>, T, W>(layer, iteration)))
#define CAPSEDGE_TILED_KERNEL(K, P, R, L, U, T, W)                                               \
  K(capsedge_tiled_kernel_##P##_##R##x##L##x##U##_##T##_##W, (const Layer layer, int iteration), \
    CAPSEDGE_BLOCKS(2), (tiled<R, L, U, kMoments<P<R, L, U>>, T, W>(layer, iteration)))
#define CAPSEDGE_GENERIC_KERNEL(K, T, W)                                                         \
  K(capsedge_generic_kernel_##T##_##W, (const Layer layer, int iteration), CAPSEDGE_BOUNDS,      \
    (generic<T, W>(layer, iteration)))
#define CAPSEDGE_VOTES_KERNEL(K, L, T, W) \
  K(capsedge_votes_kernel_##L##_##T##_##W, (const Layer layer), CAPSEDGE_BOUNDS, (keep_votes<L, T, W>(Block(), layer)))
#define CAPSEDGE_BEGIN_KERNEL(K, T) \
  K(capsedge_begin_kernel_##T, (const Layer layer), CAPSEDGE_BOUNDS, (begin<T>(layer)))
#define CAPSEDGE_FINISH_KERNEL(K, T)                                                             \
  K(capsedge_finish_kernel_##T, (const Layer layer, int iteration), CAPSEDGE_BOUNDS,             \
    (finish_unit<T>(layer, iteration)))
#define CAPSEDGE_ROWS_KERNEL(K, T)                                                                          \
  K(capsedge_squash_rows_kernel_##T, (const T* x, T* y, int64_t rows, int size, float epsilon, int group),  \
    CAPSEDGE_BOUNDS, (squash_rows<T>(Block(), x, y, rows, size, epsilon, group)))
#define CAPSEDGE_PLANES_KERNEL(K, T)                                                                              \
  K(capsedge_squash_planes_kernel_##T, (const T* x, T* y, int64_t outer, int size, int64_t inner, float epsilon), \
    CAPSEDGE_BOUNDS, (squash_planes<T>(Block(), x, y, outer, size, inner, epsilon)))

#define CAPSEDGE_KERNELS(K)                                                                \
  CAPSEDGE_PASSES(CAPSEDGE_WHOLE_KERNEL, K)                                                \
  CAPSEDGE_PASSES(CAPSEDGE_PART_KERNEL, K)                                                 \
  CAPSEDGE_TILES(CAPSEDGE_TILED_KERNEL, K)                                                 \
  CAPSEDGE_TYPED(CAPSEDGE_GENERIC_KERNEL, K)                                               \
  CAPSEDGE_TYPED(CAPSEDGE_VOTES_KERNEL, K, 16) CAPSEDGE_TYPED(CAPSEDGE_VOTES_KERNEL, K, 8) \
  CAPSEDGE_BEGIN_KERNEL(K, f32) CAPSEDGE_BEGIN_KERNEL(K, f16)                              \
  CAPSEDGE_FINISH_KERNEL(K, f32) CAPSEDGE_FINISH_KERNEL(K, f16)                            \
  CAPSEDGE_ROWS_KERNEL(K, f32) CAPSEDGE_ROWS_KERNEL(K, f16)                                \
  CAPSEDGE_PLANES_KERNEL(K, f32) CAPSEDGE_PLANES_KERNEL(K, f16)
