#include "prediction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "simd/dispatch.h"
#include "failure.h"
#include "generated/limits.h"
#include "generated/metadata.h"

namespace capsedge::libcapsedge {

namespace {

constexpr int64_t kChunk = 64;            // images per run of a model with a free batch; limits memory

const Level& plain() { return *levels_here().front(); }

// Scores of one image from logits, with the C library's exp and summed from the first class to the last.
void probabilities(double* values, size_t count, bool several) {
  if (several) {
    for (size_t j = 0; j < count; ++j) {
      const double small = std::exp(-std::abs(values[j]));
      values[j] = (values[j] >= 0 ? 1.0 : small) / (1.0 + small);  // the two halves never overflow
    }
    return;
  }
  const double largest = *std::max_element(values, values + count);
  double sum = 0;
  for (size_t j = 0; j < count; ++j) {
    values[j] = std::exp(values[j] - largest);
    sum = j == 0 ? values[j] : sum + values[j];
  }
  for (size_t j = 0; j < count; ++j) values[j] /= sum;
}

class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
    if (flag_.exchange(true, std::memory_order_acquire))
      fail_usage("Another thread is using this prediction.", "A prediction belongs to one thread at a time.",
                 "Give every thread its own.");
  }
  ~Busy() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

void Prediction::check_options(const OutputRoles& roles, PredictOptions& options) const {
  if (options.top_k < 0) fail_usage("top_k is " + std::to_string(options.top_k) + ".", "It must be 1 or more, or 0 for no limit.");
  if (options.use_threshold && !(options.threshold >= 0 && options.threshold <= 1))
    fail_usage("threshold is " + std::to_string(options.threshold) + ".", "Scores go from 0 to 1.");
  if (roles.regression && (options.top_k > 0 || options.use_threshold))
    fail_usage("The model estimates values.", "top_k and threshold choose among classes, but it has none.", "Leave them out.");
  if (roles.maps && options.top_k > 0)
    fail_usage("The model segments images.", "top_k chooses among the classes of an image, but each pixel has its own.", "Leave it out.");
  if (roles.maps && roles.maps->maps > 1 && options.use_threshold)
    fail_usage("The model gives each pixel one of " + std::to_string(roles.maps->maps) + " classes.",
               "threshold decides whether a pixel is of a single class; here the largest score decides.", "Leave it out.");
  if (options.top_k > 0 || options.use_threshold) return;
  if (roles.maps) {
    options.threshold = spec::kConfident;
    return;
  }
  if (roles.several) {
    options.use_threshold = true;
    options.threshold = spec::kConfident;
  } else {
    options.top_k = 1;
  }
}

void Prediction::predict(const Session& session, const capsedge_image* images, size_t count, PredictOptions options) {
  const Busy busy(busy_);
  count_ = 0;
  const OutputRoles& roles = session.roles();
  if (!roles.possible)
    throw Failure(CAPSEDGE_ARTEFACT, session.name() + " cannot predict.", roles.why_not, roles.fix);
  const Preprocessing& preprocessing = session.preprocessing();
  check_options(roles, options);
  names_ = session.class_names();
  classes_ = roles.classes;
  pose_size_ = roles.pose_size;
  kind_ = roles.maps ? nullptr : roles.kind;
  value_count_ = roles.values;
  segmentation_ = roles.maps.has_value();
  find_mask_places(images, count);
  const auto classes = static_cast<size_t>(classes_);
  scores_.resize(count * classes);
  poses_.resize(count * classes * static_cast<size_t>(pose_size_));
  values_.resize(count * value_count_);
  labels_.clear();
  ends_.clear();
  atypical_.clear();
  escalated_.clear();

  const int64_t fixed = session.batch(), largest = session.backend().largest_batch();
  const int64_t chunk = std::clamp<int64_t>(limits::kRunBytes / 4 / preprocessing.values(), 1, kChunk);
  const auto size = static_cast<size_t>(fixed > 0 ? fixed : largest > 0 ? std::min(chunk, largest) : chunk);
  const auto least = static_cast<size_t>(fixed > 0 ? fixed : session.backend().smallest_batch());
  for (size_t first = 0; first < count; first += size) {
    const size_t used = std::min(size, count - first);
    const size_t rows = std::max(least, used);
    prepare_batch(session, images, first, used, rows, options.invert);
    look(session, used);
    run(session, rows, used);
    keep(session, first, used, options);
  }
  count_ = count;
}

void Prediction::prepare_batch(const Session& session, const capsedge_image* images, size_t first, size_t used, size_t rows,
                               bool invert) {
  const Preprocessing& preprocessing = session.preprocessing();
  const auto values = static_cast<size_t>(preprocessing.values());
  const auto start = std::chrono::steady_clock::now();
  input_.resize(rows * values);
  for (size_t n = 0; n < used; ++n)
    prepare(preprocessing, images[first + n], invert, "image " + std::to_string(first + n), scratch_, input_.data() + n * values);
  std::fill(input_.begin() + static_cast<std::ptrdiff_t>(used * values), input_.end(), 0.0f);
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);
  session.counters().prepare_ns.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

void Prediction::look(const Session& session, size_t used) {
  const std::optional<TypicalInput>& typical = session.metadata()->typical_input;  // a model that can predict has metadata
  const Preprocessing& preprocessing = session.preprocessing();
  const auto values = static_cast<size_t>(preprocessing.values());
  for (size_t n = 0; n < used; ++n)
    atypical_.push_back(typical ? atypical_reason(*typical, preprocessing, input_.data() + n * values) : nullptr);
}

void Prediction::run(const Session& session, size_t rows, size_t used) {
  const OutputRoles& roles = session.roles();
  const std::vector<Port>& ports = session.backend().outputs();
  const Port& in = session.backend().inputs()[0];
  Value input;
  input.type = in.type;
  input.rank = 4;
  input.shape[0] = static_cast<int64_t>(rows);
  const std::array<int64_t, 3> shape = session.preprocessing().shape();
  std::copy(shape.begin(), shape.end(), input.shape + 1);
  input.data = input_.data();
  input.bytes = input_.size() * 4;
  if (in.type == CAPSEDGE_FLOAT16) {
    half_.resize(input_.size());
    plain().narrow(input_.data(), half_.data(), static_cast<int64_t>(input_.size()));
    input.data = half_.data();
    input.bytes = half_.size() * 2;
  }
  const size_t count = roles.outputs.size();
  Value outputs[CAPSEDGE_MAX_TENSORS];
  found_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const RoleOutput& output = roles.outputs[i];
    Value& value = outputs[i];
    value.port = output.port;
    value.type = ports[output.port].type;
    value.rank = static_cast<int32_t>(1 + output.shape.size());
    value.shape[0] = static_cast<int64_t>(rows);
    std::copy(output.shape.begin(), output.shape.end(), value.shape + 1);
    found_[i].resize(rows * output.values);
    value.data = found_[i].data();
    value.bytes = found_[i].size() * element_bytes(value.type);
  }
  session.run_values(&input, 1, outputs, count, static_cast<int64_t>(rows));
  for (size_t i = 0; i < count; ++i) {
    std::vector<float>& room = found_[i];
    if (outputs[i].type == CAPSEDGE_FLOAT16) {
      // They are in the first half of the buffer.
      half_.resize(room.size());
      std::memcpy(half_.data(), room.data(), half_.size() * 2);
      plain().widen(half_.data(), room.data(), static_cast<int64_t>(half_.size()));
    }
    const size_t checked = roles.regression || i == 0 ? used * roles.outputs[i].values : 0;  // poses decide nothing
    if (!std::all_of(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(checked), [](float v) { return std::isfinite(v); }))
      throw Failure(CAPSEDGE_ARTEFACT, session.name() + " computed " + ports[outputs[i].port].name + " that are NaN or infinite.",
                    "The weights may be damaged, or their range too large for the file's precision.",
                    "Run `capsedge verify` on the file.");
  }
}

// The room of each image's mask; an image whose size is wrong is refused when it is prepared.
void Prediction::find_mask_places(const capsedge_image* images, size_t count) {
  mask_sizes_.clear();
  mask_starts_.clear();
  size_t total = 0;
  for (size_t n = 0; n < count && segmentation_; ++n) {
    const bool sound = images[n].height > 0 && images[n].width > 0 && int64_t{images[n].height} * images[n].width <= limits::kImagePixels;
    mask_sizes_.push_back(sound ? Size{images[n].height, images[n].width} : Size{0, 0});
    mask_starts_.push_back(total);
    total += static_cast<size_t>(mask_sizes_.back().height * mask_sizes_.back().width);
  }
  masks_.resize(total);
}

void Prediction::keep_masks(const ScoreMaps& maps, const Preprocessing& preprocessing, size_t first, size_t used, float level) {
  const auto each = static_cast<size_t>(maps.height * maps.width * maps.maps);
  for (size_t n = 0; n < used; ++n) {
    const Size size = mask_sizes_[first + n];
    write_mask(maps, found_[0].data() + n * each, preprocessing, size.height, size.width, level, mask_scratch_,
               masks_.data() + mask_starts_[first + n]);
    escalated_.push_back(-1);
    ends_.push_back(0);
  }
}

void Prediction::keep(const Session& session, size_t first, size_t used, const PredictOptions& options) {
  const OutputRoles& roles = session.roles();
  if (roles.maps) {
    keep_masks(*roles.maps, session.preprocessing(), first, used, mask_level(options.threshold, roles.logits));
    return;
  }
  if (roles.regression) {
    for (size_t n = 0; n < used; ++n) {
      double* to = values_.data() + (first + n) * value_count_;
      for (size_t i = 0; i < found_.size(); ++i) {
        const size_t each = roles.outputs[i].values;
        to = std::copy_n(found_[i].data() + n * each, each, to);
      }
      escalated_.push_back(-1);
      ends_.push_back(0);
    }
    return;
  }
  const auto classes = static_cast<size_t>(classes_), poses = classes * static_cast<size_t>(pose_size_);
  for (size_t n = 0; n < used; ++n) {
    double* const scores = scores_.data() + (first + n) * classes;
    std::copy_n(found_[0].data() + n * classes, classes, scores);
    if (roles.logits) probabilities(scores, classes, roles.several);
    if (poses > 0) std::copy_n(found_[1].data() + n * poses, poses, poses_.data() + (first + n) * poses);
    const auto* const decided = roles.escalated ? reinterpret_cast<const unsigned char*>(found_.back().data()) : nullptr;
    escalated_.push_back(decided == nullptr ? -1 : decided[n] != 0);
    choose(first + n, options);
  }
}

void Prediction::choose(size_t image, const PredictOptions& options) {
  const auto classes = static_cast<size_t>(classes_), pose = static_cast<size_t>(pose_size_);
  const double* scores = scores_.data() + image * classes;
  order_.resize(classes);
  for (size_t j = 0; j < classes; ++j) order_[j] = static_cast<int32_t>(j);
  std::sort(order_.begin(), order_.end(),
            [scores](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  const size_t most = options.top_k > 0 ? static_cast<size_t>(options.top_k) : classes;
  size_t taken = 0;
  for (const int32_t j : order_) {
    if (taken == most || (options.use_threshold && scores[j] < options.threshold)) break;
    const float* const of_class = pose > 0 ? poses_.data() + (image * classes + static_cast<size_t>(j)) * pose : nullptr;
    labels_.push_back({(*names_)[static_cast<size_t>(j)].c_str(), of_class, scores[j], j});
    ++taken;
  }
  ends_.push_back(labels_.size());
}

void Prediction::result(size_t image, capsedge_result& result) const {
  if (image >= count_)
    fail_usage("There is no image " + std::to_string(image) + ".", "The prediction holds " + std::to_string(count_) + ".");
  const size_t begin = image == 0 ? 0 : ends_[image - 1];
  result.labels = labels_.data() + begin;
  result.label_count = ends_[image] - begin;
  const size_t classes = static_cast<size_t>(classes_);
  if (classes > 0) result.scores = scores_.data() + image * classes;
  if (pose_size_ > 0) result.poses = poses_.data() + image * classes * static_cast<size_t>(pose_size_);
  if (value_count_ > 0) result.values = values_.data() + image * value_count_;
  result.value_count = value_count_;
  result.class_count = classes_;
  result.pose_size = pose_size_;
  result.score_kind = kind_;
  result.atypical = atypical_[image];
  result.escalated = escalated_[image];
  if (!segmentation_) return;
  result.mask = masks_.data() + mask_starts_[image];
  result.mask_height = static_cast<int32_t>(mask_sizes_[image].height);
  result.mask_width = static_cast<int32_t>(mask_sizes_[image].width);
}

}  // namespace capsedge::libcapsedge
