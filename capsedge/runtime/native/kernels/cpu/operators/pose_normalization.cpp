#include "operator.h"
#include "rows.h"

namespace capsedge {

namespace {

class PoseNormalization : public Operator {
 public:
  PoseNormalization(const Attributes& attributes, const Level& level)
      : Operator(attributes, level), epsilon_(attributes.number("epsilon")) {}

  void run(const std::vector<Tensor>& in, const std::vector<Output>& results, const Threads& threads) const override {
    const int64_t size = in[0].shape.back();
    const Floats scale(in[1], level_), bias(in[2], level_);
    for_rows(name(), in[0], results[0], size, level_, threads, [&](const float* x, float* y, int64_t rows) {
      level_.normalize_rows(x, y, rows, size, scale.data(), bias.data(), epsilon_);
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
