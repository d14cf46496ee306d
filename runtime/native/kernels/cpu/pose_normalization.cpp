#include <algorithm>

#include "operator.h"

namespace capsedge {

namespace {

constexpr char kName[] = "PoseNormalization";

class PoseNormalization : public Operator {
 public:
  PoseNormalization(const Attributes& attributes, const Level& level)
      : Operator(level), epsilon_(attributes.positive(kName, "epsilon", 1e-5f)) {}

  std::vector<Shape> outputs(const std::vector<Shape>& in) const override {
    expect(in.size() == 3, kName, "wanted three inputs");
    expect(!in[0].empty() && in[0].back() >= 1, kName, "input 'x' has shape ", in[0], ": wanted [..., P]");
    expect_shape(kName, "scale", in[1], {in[0].back()});
    expect_shape(kName, "bias", in[2], {in[0].back()});
    return {in[0]};
  }

  void constant(size_t, const Tensor&) override {}

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const int64_t size = in[0].shape.back(), rows = elements(in[0].shape) / size;
    if (rows == 0) return;
    const Floats scale(in[1], level_), bias(in[2], level_);
    const int64_t part = std::max<int64_t>(1, 16384 / size);  // about 64 KB
    parallel_for(threads, (rows + part - 1) / part, [&](int64_t task) {
      const int64_t first = task * part, count = std::min(part, rows - first), at = first * size;
      if (in[0].type == Type::kFloat) {
        level_.normalize_rows(static_cast<const float*>(in[0].data) + at, static_cast<float*>(results[0].data) + at,
                              count, size, scale.data(), bias.data(), epsilon_);
        return;
      }
      float* wide = thread_scratch(count * size);
      level_.widen(static_cast<const uint16_t*>(in[0].data) + at, wide, count * size);
      level_.normalize_rows(wide, wide, count, size, scale.data(), bias.data(), epsilon_);
      level_.narrow(wide, static_cast<uint16_t*>(results[0].data) + at, count * size);
    });
  }

 private:
  const float epsilon_;
};

}  // namespace

std::unique_ptr<Operator> make_pose_normalization(const Attributes& attributes, const Level& level) {
  return std::make_unique<PoseNormalization>(attributes, level);
}

}  // namespace capsedge
