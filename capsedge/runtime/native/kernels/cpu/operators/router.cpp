#include "router.h"

#include <algorithm>

#include "dense_weight.h"

namespace capsedge {

namespace {

// Weights up to this size stay in a core's second-level cache while one group after another uses them.
constexpr int64_t kCachedWeights = 256 * 1024;  // floats
// Votes are kept between passes if they stay in cache ...
constexpr int64_t kKeptByTask = 64 * 1024;
constexpr int64_t kKeptByAll = 512 * 1024;
// ... or if the weights do not: recomputing the votes would read all weights from memory again, which takes longer than
// reading votes that take less memory.
constexpr int64_t kWeightsPerVote = 2;
// Weights of a chunk below this size stay in the last cache while one group after another uses them.
constexpr int64_t kCachedChunk = 1024 * 1024;
// Number of partial sums in memory at the same time, and of units that have them.
constexpr int64_t kSumsInFlight = 4 * 1024 * 1024;
constexpr int64_t kUnitsInFlight = 64;

class Run {
 public:
  Run(const Routing& routing, const Level& level, const Threads& threads)
      : r_(routing),
        level_(level),
        threads_(threads),
        unit_floats_(static_cast<int64_t>(r_.votes.pose_elements + (r_.over_children ? 2 : 0)) * r_.votes.lanes),
        chunks_((r_.children + kChunk - 1) / kChunk),
        group_votes_(round_up(r_.children, r_.votes.of_all ? kSlack : 1) * r_.votes.tile_stride),
        kept_groups_(groups_kept_in_memory()) {}

  void all() {
    const auto groups = static_cast<int64_t>(r_.groups.size());
    if (groups >= 4 && r_.weight_floats <= kCachedWeights) {
      parallel_for(threads_, groups, [this](int64_t g) { group_by_itself(r_.groups[static_cast<size_t>(g)]); });
      return;
    }
    int64_t most = std::clamp<int64_t>(kSumsInFlight / (chunks_ * unit_floats_), 1, kUnitsInFlight);
    if (kept_groups_ > 0) most = std::min(most, kept_groups_ * group(0).units);
    for (int64_t first = 0, last; first < groups; first = last) {
      int64_t units = 0;
      for (last = first; last < groups && units < most; ++last) units += group(last).units;
      groups_by_chunk(first, last, units);
    }
  }

 private:
  const Group& group(int64_t g) const { return r_.groups[static_cast<size_t>(g)]; }

  // Number of groups routed together whose votes are kept although they do not stay in cache. If the weights of a chunk
  // do, groups share each reading of them, and more groups than that are routed without keeping votes.
  int64_t groups_kept_in_memory() const {
    if (r_.passes == 1 || r_.weight_floats < kUncachedWeights) return 0;
    const int64_t fit = r_.weight_floats / (kWeightsPerVote * std::max<int64_t>(group_votes_, 1));
    const bool shared = r_.weight_floats / chunks_ < kCachedChunk;
    return shared && static_cast<int64_t>(r_.groups.size()) > fit ? 0 : fit;
  }

  // Pass `t`, with its query if there is one.
  RoutingPass pass(const Group& group, int64_t chunk, int t, const float* query, float* kept, float* sums,
                   float* scratch) const {
    RoutingPass p{};
    p.votes = r_.votes;
    p.first = static_cast<int>(chunk * kChunk);
    p.last = static_cast<int>(std::min(r_.children, (chunk + 1) * kChunk));
    p.units = group.units;
    p.pose = group.pose;
    p.unit_stride = r_.unit_stride;
    p.query = t > 0 || r_.start ? query : nullptr;
    p.scale = r_.scale;
    p.prior = t > 0 && r_.replace ? nullptr : r_.prior;
    if (p.prior) p.prior += group.unit * r_.prior_stride;
    p.prior_stride = r_.prior_stride;
    p.mask = r_.mask ? r_.mask + group.unit * r_.mask_stride : nullptr;
    p.mask_stride = r_.mask_stride;
    p.leaky = r_.leaky;
    p.bias = p.query ? r_.bias : nullptr;
    p.kept = kept;
    p.have_kept = t > 0 && kept != nullptr;
    p.sum_stride = unit_floats_;
    p.sums = sums;
    p.scratch = scratch;
    return p;
  }

  void route_pass(const RoutingPass& pass) const {
    if (r_.over_children) {
      level_.route_over_children(pass);
    } else {
      level_.route(pass);
    }
  }

  // Adds the sums of the other children of some units to theirs.
  void merge(int units, const float* other, float* sums) const {
    if (!r_.over_children) return level_.add(other, sums, units * unit_floats_);
    for (int u = 0; u < units; ++u)
      level_.merge_over_children(r_.votes.pose_elements, r_.votes.lanes, other + u * unit_floats_,
                                 sums + u * unit_floats_);
  }

  // All passes of one group in one task.
  void group_by_itself(const Group& group) const {
    const int64_t floats = group.units * unit_floats_;
    const bool keep = r_.passes > 1 && group_votes_ <= kKeptByTask;
    float* query = thread_scratch(3 * floats + (keep ? group_votes_ : 0) + scratch_floats(r_.votes));
    float* sum = query + floats;
    float* part = sum + floats;
    float* kept = keep ? part + floats : nullptr;
    float* scratch = part + floats + (keep ? group_votes_ : 0);
    std::fill(query, query + floats, 0.0f);
    if (r_.start)
      for (int u = 0; u < group.units; ++u) r_.start(group.unit + u, query + u * unit_floats_);
    for (int t = 0; t < r_.passes; ++t) {
      for (int64_t c = 0; c < chunks_; ++c) {
        route_pass(pass(group, c, t, query, kept, c ? part : sum, scratch));
        if (c) merge(group.units, part, sum);
      }
      for (int u = 0; u < group.units; ++u)
        r_.finish(group.unit + u, t + 1 == r_.passes, sum + u * unit_floats_, query + u * unit_floats_);
    }
  }

  // Runs the groups from first to last together: every task takes part of the children, so weights are read once per
  // pass.
  void groups_by_chunk(int64_t first, int64_t last, int64_t units) const {
    const int64_t first_unit = group(first).unit;
    const int64_t floats = units * unit_floats_;
    const bool in_cache = r_.passes > 1 && (last - first) * group_votes_ <= kKeptByAll;
    const bool keep = in_cache || last - first <= kept_groups_;
    Buffer queries(floats), parts(chunks_ * floats), kept(keep ? (last - first) * group_votes_ : 0);
    std::fill(queries.data(), queries.data() + floats, 0.0f);
    const int64_t slices = std::clamp<int64_t>((16 + chunks_ - 1) / chunks_, 1, last - first);
    if (r_.start)
      parallel_for(threads_, units, [&](int64_t u) { r_.start(first_unit + u, queries.data() + u * unit_floats_); });
    for (int t = 0; t < r_.passes; ++t) {
      parallel_for(threads_, chunks_ * slices, [&](int64_t task) {
        const int64_t chunk = task / slices, slice = task % slices;
        float* scratch = thread_scratch(scratch_floats(r_.votes));
        const int64_t from = first + (last - first) * slice / slices;
        const int64_t to = first + (last - first) * (slice + 1) / slices;
        for (int64_t g = from; g < to; ++g) {
          const int64_t at = (group(g).unit - first_unit) * unit_floats_;
          route_pass(pass(group(g), chunk, t, queries.data() + at,
                          keep ? kept.data() + (g - first) * group_votes_ : nullptr,
                          parts.data() + chunk * floats + at, scratch));
        }
      });
      parallel_for(threads_, units, [&](int64_t u) {
        float* sum = parts.data() + u * unit_floats_;
        for (int64_t c = 1; c < chunks_; ++c) merge(1, sum + c * floats, sum);
        r_.finish(first_unit + u, t + 1 == r_.passes, sum, queries.data() + u * unit_floats_);
      });
    }
  }

  const Routing& r_;
  const Level& level_;
  const Threads& threads_;
  const int64_t unit_floats_;
  const int64_t chunks_;
  const int64_t group_votes_;  // floats
  const int64_t kept_groups_;
};

}  // namespace

void route(const Routing& routing, const Level& level, const Threads& threads) {
  Run(routing, level, threads).all();
}

}  // namespace capsedge
