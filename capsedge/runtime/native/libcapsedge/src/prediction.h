// The results for a batch of images (capsedge/runtime/session/predictions.py), and their memory, reused between calls.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "preprocessing.h"
#include "session.h"

namespace capsedge::libcapsedge {

struct PredictOptions {
  int32_t top_k = 0;  // 0: no limit
  bool use_threshold = false;
  double threshold = 0;
  bool invert = false;
};

class Prediction {
 public:
  void predict(const Session& session, const capsedge_image* images, size_t count, PredictOptions options);
  size_t count() const { return count_; }
  void result(size_t image, capsedge_result& result) const;

 private:
  void check_options(const OutputRoles& roles, PredictOptions& options) const;
  void prepare_batch(const Session& session, const capsedge_image* images, size_t first, size_t used, size_t rows, bool invert);
  void run(const Session& session, size_t rows, size_t used);
  void keep(const Session& session, size_t first, size_t used, const PredictOptions& options);
  void choose(size_t image, const PredictOptions& options);
  void find_mask_places(const capsedge_image* images, size_t count);
  void keep_masks(const ScoreMaps& maps, const Preprocessing& preprocessing, size_t first, size_t used, float level);
  void look(const Session& session, size_t used);

  std::atomic<bool> busy_{false};
  std::shared_ptr<const std::vector<std::string>> names_;
  size_t count_ = 0;
  int32_t classes_ = 0, pose_size_ = 0;
  const char* kind_ = nullptr;
  size_t value_count_ = 0;
  std::vector<double> values_;          // [count, value_count], of a regression
  std::vector<double> scores_;          // [count, classes]
  std::vector<float> poses_;            // [count, classes, pose]
  std::vector<capsedge_label> labels_;  // of all images
  std::vector<size_t> ends_;            // of each image's labels
  std::vector<int32_t> escalated_;       // of each image: whether a cascade's large network decided; -1 for other models
  bool segmentation_ = false;
  std::vector<uint8_t> masks_;           // of all images, one after the other
  std::vector<Size> mask_sizes_;         // of each image
  std::vector<size_t> mask_starts_;      // of each image
  std::vector<const char*> atypical_;    // why there is nothing to see in each image, or null
  // Of one run.
  PrepareScratch scratch_;
  MaskScratch mask_scratch_;
  std::vector<float> input_;
  std::vector<std::vector<float>> found_;  // of each output of the answers
  std::vector<uint16_t> half_;
  std::vector<int32_t> order_;
};

}  // namespace capsedge::libcapsedge
