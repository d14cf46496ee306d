#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "subgraph.h"
#include "failure.h"
#include "generated/limits.h"
#include "simd/dispatch.h"

namespace capsedge::libcapsedge {

namespace {

constexpr size_t kChunk = 64;  // poses per run, as in Python; limits memory

const Level& plain() { return *levels_here().front(); }

// The product of the sizes after the batch; 0 if one is free.
int64_t behind_batch(const Port& port) {
  int64_t product = 1;
  for (size_t i = 1; i < port.shape.size(); ++i)
    if (port.shape[i] <= 0 || __builtin_mul_overflow(product, port.shape[i], &product)) return 0;
  return product;
}

bool is_float(const Port& port) { return port.type == CAPSEDGE_FLOAT32 || port.type == CAPSEDGE_FLOAT16; }

void check_finite(const float* poses, size_t values) {
  const auto wrong = std::count_if(poses, poses + values, [](float v) { return !(std::fabs(v) < static_cast<float>(limits::kInputMagnitude)); });
  if (wrong > 0)
    fail_usage("The poses have values that are NaN or infinite, or of 2^32 and more.",
               std::to_string(wrong) + " of " + std::to_string(values) + " values; expected: finite numbers below 2^32.",
               "Clean the poses before decoding.");
}

}  // namespace

Decoder::Decoder(std::string_view model, std::string name, const Port& poses, const Port& pictures, Open open)
    : name_(std::move(name)), open_(std::move(open)) {
  const int64_t values = behind_batch(poses);
  if (poses.shape.size() < 3 || values == 0) {
    refused_ = "the file leaves the number of its poses open";
  } else if (pictures.shape.size() != 5 || behind_batch(pictures) == 0 || pictures.shape[1] != poses.shape[1]) {
    refused_ = "it is not a picture for each class";
  } else {
    sizes_ = {poses.shape[1], values / poses.shape[1], pictures.shape[2], pictures.shape[3], pictures.shape[4]};
    try {
      part_ = extract_subgraph(model, poses.name, kReconstruction);
    } catch (const SubgraphError& error) {
      refused_ = error.what();
    }
  }
}

const DecoderSizes& Decoder::sizes() const {
  if (!refused_.empty())
    fail_usage(name_ + " cannot decode poses.", "Its output 'reconstruction' is not computed from its poses alone: " + refused_ + ".",
               "Export the model again with `capsedge export --with reconstruction`; a network of your own must compute its "
               "pictures from the poses that it returns.");
  return sizes_;
}

const Backend& Decoder::backend() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!backend_) {
    std::unique_ptr<Backend> opened = open_(part_);
    const Port& in = opened->inputs().at(0);
    if (!is_float(in) || !is_float(opened->outputs().at(0)) || in.shape.empty() || in.shape.size() > CAPSEDGE_MAX_RANK ||
        behind_batch(in) != static_cast<int64_t>(sizes_.poses()))
      fail_usage(name_ + " cannot decode poses.",
                 "Its decoder reads '" + in.name + "' " + shape_text(in.shape.data(), in.shape.size()) +
                     ", whose size differs from the poses of an image.",
                 "Export the model again with `capsedge export --with reconstruction`.");
    backend_ = std::move(opened);
  }
  return *backend_;
}

void Decoder::decode(const float* poses, const int32_t* classes, size_t count, float* pictures, size_t room) const {
  const DecoderSizes& s = sizes();
  const auto known = static_cast<size_t>(s.classes), pose = static_cast<size_t>(s.pose);
  const size_t of_pose = classes ? 1 : known;
  if (count == 0) fail_usage("There are no poses to decode.", "", "Pass at least one.");
  if (count > room / (of_pose * s.picture()))
    fail_usage("There is no room for the pictures.", std::to_string(count) + " poses take " + std::to_string(of_pose * s.picture()) +
                                                         " values each; given: " + std::to_string(room) + ".");
  check_finite(poses, count * of_pose * pose);
  if (!classes) return run(poses, count, pictures);
  // Poses of different classes share an image, because a picture depends only on the pose of its own class.
  std::vector<size_t> images(count), counts(known);
  for (size_t k = 0; k < count; ++k) {
    if (classes[k] < 0 || classes[k] >= s.classes)
      fail_usage("There is no class " + std::to_string(classes[k]) + ".", "The model has " + std::to_string(s.classes) + ".");
    images[k] = counts[static_cast<size_t>(classes[k])]++;
  }
  const size_t rows = *std::max_element(counts.begin(), counts.end());
  std::vector<float> packed(rows * s.poses()), drawn(rows * known * s.picture());
  const auto place = [&](size_t k) { return images[k] * known + static_cast<size_t>(classes[k]); };
  for (size_t k = 0; k < count; ++k) std::copy_n(poses + k * pose, pose, packed.data() + place(k) * pose);
  run(packed.data(), rows, drawn.data());
  for (size_t k = 0; k < count; ++k)
    std::copy_n(drawn.data() + place(k) * s.picture(), s.picture(), pictures + k * s.picture());
}

void Decoder::run(const float* poses, size_t count, float* pictures) const {
  const Backend& decoder = backend();
  const Port& in = decoder.inputs()[0];
  const Port& out = decoder.outputs()[0];
  const size_t fixed = in.shape[0] > 0 ? static_cast<size_t>(in.shape[0]) : 0, step = fixed ? fixed : kChunk;
  const size_t each = static_cast<size_t>(sizes_.classes) * sizes_.picture();
  std::vector<float> given, found;
  std::vector<uint16_t> half_in, half_out;
  for (size_t first = 0; first < count; first += step) {
    const size_t used = std::min(step, count - first), rows = fixed ? fixed : used;
    given.assign(rows * sizes_.poses(), 0.0f);
    std::copy_n(poses + first * sizes_.poses(), used * sizes_.poses(), given.data());
    found.resize(rows * each);
    Value input, output;
    input.type = in.type;
    input.rank = static_cast<int32_t>(in.shape.size());
    std::copy(in.shape.begin(), in.shape.end(), input.shape);
    input.shape[0] = static_cast<int64_t>(rows);
    input.data = given.data();
    input.bytes = given.size() * element_bytes(in.type);
    if (in.type == CAPSEDGE_FLOAT16) {
      half_in.resize(given.size());
      plain().narrow(given.data(), half_in.data(), static_cast<int64_t>(given.size()));
      input.data = half_in.data();
    }
    output.type = out.type;
    output.rank = 5;
    const int64_t shape[] = {static_cast<int64_t>(rows), sizes_.classes, sizes_.channels, sizes_.height, sizes_.width};
    std::copy(std::begin(shape), std::end(shape), output.shape);
    output.data = found.data();
    output.bytes = found.size() * element_bytes(out.type);
    if (out.type == CAPSEDGE_FLOAT16) {
      half_out.resize(found.size());
      output.data = half_out.data();
    }
    decoder.run(&input, 1, &output, 1);
    if (out.type == CAPSEDGE_FLOAT16) plain().widen(half_out.data(), found.data(), static_cast<int64_t>(found.size()));
    std::copy_n(found.data(), used * each, pictures + first * each);
  }
}

}  // namespace capsedge::libcapsedge
