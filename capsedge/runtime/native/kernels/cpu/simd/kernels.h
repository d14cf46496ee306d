// All kernels of one level, and the table through which they are called. Included last by each level's translation
// unit.
#pragma once

#include "conv.h"
#include "em.h"
#include "fast_conv.h"
#include "half.h"
#include "level.h"
#include "linear.h"
#include "routing.h"
#include "squash.h"

namespace capsedge {
namespace CAPSEDGE_LEVEL {

static void add(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += W) store(y + i, load(y + i) + load(x + i));
}

template <V (*F)(V)>
static void map(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += W) store(y + i, F(load(x + i)));
}

static V exp_of(V x) { return exp(x); }
static V log_of(V x) { return log(x); }
static V rsqrt_of(V x) { return rsqrt(x); }

}  // namespace CAPSEDGE_LEVEL

#define CAPSEDGE_STRING(x) CAPSEDGE_STRING_(x)
#define CAPSEDGE_STRING_(x) #x

extern const Level CAPSEDGE_TABLE;
const Level CAPSEDGE_TABLE = {
    CAPSEDGE_STRING(CAPSEDGE_LEVEL),
    CAPSEDGE_WIDTH,
    CAPSEDGE_LEVEL::widen,
    CAPSEDGE_LEVEL::narrow,
    CAPSEDGE_LEVEL::squash_rows,
    CAPSEDGE_LEVEL::squash_planes,
    CAPSEDGE_LEVEL::route,
    CAPSEDGE_LEVEL::route_over_children,
    CAPSEDGE_LEVEL::merge_over_children,
    CAPSEDGE_LEVEL::em,
    CAPSEDGE_LEVEL::em_merge,
    CAPSEDGE_LEVEL::em_finish,
    CAPSEDGE_LEVEL::em_fold,
    CAPSEDGE_LEVEL::em_spread,
    CAPSEDGE_LEVEL::add,
    CAPSEDGE_LEVEL::finish_agreement,
    CAPSEDGE_LEVEL::finish_norm,
    CAPSEDGE_LEVEL::finish_exponential,
    CAPSEDGE_LEVEL::kLinearRows,
    CAPSEDGE_LEVEL::linear,
    CAPSEDGE_LEVEL::normalize_rows,
    CAPSEDGE_LEVEL::kConv,
    CAPSEDGE_LEVEL::kFilter,
    CAPSEDGE_LEVEL::map<CAPSEDGE_LEVEL::exp_of>,
    CAPSEDGE_LEVEL::map<CAPSEDGE_LEVEL::log_of>,
    CAPSEDGE_LEVEL::map<CAPSEDGE_LEVEL::rsqrt_of>,
};

}  // namespace capsedge
