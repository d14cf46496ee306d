// capsedge in C++17: capsedge.h with owners and results. Header only; link libcapsedge. docs/how-to/libcapsedge.md has the guide.
//
// Owners (Session, Prediction) are move-only and close what they own. Every call that can fail returns a Result: an
// Error, or the value. Nothing here throws, and the header compiles with -fno-exceptions. A program that prefers
// exceptions can use them for single calls: value() throws capsedge::Exception if there is an error.
//
// What reads memory of an owner, such as prediction[0] or session.describe(), is deleted for temporary owners, where
// the memory would be freed before it is read. Give the owner a name: auto prediction = session->predict(image).
//
//   auto session = capsedge::Session::open("model.onnx");
//   if (!session) return complain(session.error().message);
//   auto session = capsedge::Session::open("model.onnx").value();  // the same with exceptions
#ifndef CAPSEDGE_HPP_
#define CAPSEDGE_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

#include "capsedge.h"

namespace capsedge {

struct Error {
  capsedge_code code = CAPSEDGE_OK;
  std::string message;
};

#if defined(__cpp_exceptions)
class Exception : public std::runtime_error {
 public:
  explicit Exception(const Error& error) : std::runtime_error(error.message), code_(error.code) {}
  capsedge_code code() const { return code_; }

 private:
  capsedge_code code_;
};
#endif

// A value or an Error. As with std::expected, * and -> are for results that are known to hold a value. Of a temporary
// result, * moves the value out, so that `for (float f : *session->prepare(image))` reads a living vector.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return held_.index() == 0; }
  T& operator*() & { return *std::get_if<0>(&held_); }
  const T& operator*() const& { return *std::get_if<0>(&held_); }
  T operator*() && { return std::move(*std::get_if<0>(&held_)); }
  T* operator->() & { return std::get_if<0>(&held_); }
  const T* operator->() const& { return std::get_if<0>(&held_); }
  const T* operator->() const&& = delete;
  // Only where there is no value.
  const Error& error() const& { return *std::get_if<1>(&held_); }
  Error error() && { return std::move(*std::get_if<1>(&held_)); }
#if defined(__cpp_exceptions)
  T value() && {
    if (!*this) throw Exception(error());
    return *std::move(*this);
  }
#endif

 private:
  std::variant<T, Error> held_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  // Takes over a status of the C interface.
  explicit Result(capsedge_status* status) {
    if (status == nullptr) return;
    error_ = {capsedge_status_code(status), capsedge_status_message(status)};
    capsedge_status_release(status);
  }

  explicit operator bool() const { return error_.code == CAPSEDGE_OK; }
  const Error& error() const& { return error_; }
  Error error() && { return std::move(error_); }
#if defined(__cpp_exceptions)
  void value() const {
    if (!*this) throw Exception(error_);
  }
#endif

 private:
  Error error_;
};

// Values owned by something else.
template <typename T>
class View {
 public:
  View() = default;
  View(const T* data, size_t size) : data_(data), size_(size) {}
  View(const std::vector<T>& values) : data_(values.data()), size_(values.size()) {}
  View(const std::vector<T>&&) = delete;
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};

// Pixels of the caller; rows follow each other unless `stride`, in bytes, says otherwise.
inline capsedge_image image(const uint8_t* pixels, int32_t height, int32_t width, int32_t channels, int64_t stride = 0) {
  return {pixels, CAPSEDGE_UINT8, height, width, channels, stride};
}

// A frame of a camera, to be filled in: format, matrix, range, size, planes.
inline capsedge_frame frame() { return CAPSEDGE_FRAME_INIT; }

// The frame as RGB [height, width, 3], in memory that is reused.
inline Result<void> to_rgb(const capsedge_frame& frame, std::vector<uint8_t>& pixels) {
  const size_t rows = frame.height > 0 ? static_cast<size_t>(frame.height) : 0;
  pixels.resize(frame.width > 0 ? 3 * rows * static_cast<size_t>(frame.width) : 0);
  return Result<void>(capsedge_frame_to_rgb(&frame, pixels.data(), pixels.size()));
}

// The result for one image; the memory belongs to the prediction.
struct ImageResult {
  View<capsedge_label> labels;  // best first
  View<double> scores;          // one per class
  View<float> poses;            // [classes, pose]
  int32_t pose_size = 0;
  const char* score_kind = nullptr;  // "length" or "probability"
  View<double> values;               // of a regression; Session::value_name has their names and units
  const char* atypical = nullptr;     // why there is nothing to see in the image; null if there is something
  int32_t escalated = -1;             // of a cascade: 1 if its large network decided, 0 if the small one; -1 for others
  View<uint8_t> mask;                 // of a segmentation, [mask_height, mask_width]: the class of each pixel, 255 unknown
  int32_t mask_height = 0, mask_width = 0;
};

struct ValueName {
  std::string name, unit;  // "yaw", "degrees"
};

// The results for a batch, and the memory to compute them. For one thread at a time.
class Prediction {
 public:
  static Result<Prediction> create() {
    Prediction made;
    if (Result<void> done(capsedge_prediction_create(&made.handle_)); !done) return done.error();
    return made;
  }
  Prediction(Prediction&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Prediction& operator=(Prediction&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Prediction() {
    if (handle_) capsedge_status_release(capsedge_prediction_close(handle_));
  }

  size_t size() const {
    size_t count = 0;
    Result<void> done(capsedge_prediction_count(handle_, &count));
    return done ? count : 0;
  }

  // The result for image `i`; an empty one if there is no such image.
  ImageResult operator[](size_t i) const& {
    capsedge_result r = CAPSEDGE_RESULT_INIT;
    if (!Result<void>(capsedge_prediction_result(handle_, i, &r))) return {};
    const auto classes = static_cast<size_t>(r.class_count);
    return {{r.labels, r.label_count}, {r.scores, classes}, {r.poses, classes * static_cast<size_t>(r.pose_size)},
            r.pose_size, r.score_kind, {r.values, r.value_count}, r.atypical, r.escalated,
            {r.mask, static_cast<size_t>(r.mask_height) * static_cast<size_t>(r.mask_width)}, r.mask_height, r.mask_width};
  }
  ImageResult operator[](size_t i) const&& = delete;

  capsedge_prediction* handle() const& { return handle_; }
  capsedge_prediction* handle() const&& = delete;

 private:
  Prediction() = default;
  capsedge_prediction* handle_ = nullptr;
};

struct PredictOptions : capsedge_predict_options {
  PredictOptions() : capsedge_predict_options CAPSEDGE_PREDICT_OPTIONS_INIT {}
  PredictOptions& top(int32_t count) & { return top_k = count, *this; }
  PredictOptions& at_least(double score) & { return use_threshold = 1, threshold = score, *this; }
  PredictOptions& dark_ink(bool yes = true) & { return invert = yes, *this; }
  PredictOptions top(int32_t count) && { return top(count); }
  PredictOptions at_least(double score) && { return at_least(score); }
  PredictOptions dark_ink(bool yes = true) && { return dark_ink(yes); }
};

struct OpenOptions {
  int32_t threads = 0;
  capsedge_ops ops = CAPSEDGE_OPS_AUTO;
  std::string onnxruntime;           // empty: search
  std::vector<std::string> outputs;  // empty: all
  std::string tensorrt;              // empty: search
  int32_t device = 0;                // number of the GPU
  size_t contexts = 0;               // calls of an engine at the same time; 0: 4
  capsedge_provider provider = CAPSEDGE_PROVIDER_CPU;  // of an ONNX file
  capsedge_graphs graphs = CAPSEDGE_GRAPHS_AUTO;
  std::string cuda_kernels;          // file of the CUDA kernels; empty: search
};

// A loaded model; for any number of threads at once.
class Session {
 public:
  static Result<Session> open(const std::string& path, const OpenOptions& options = {}) {
    return make(options, [&](const capsedge_open_options* o, capsedge_session** s) { return capsedge_open(path.c_str(), o, s); });
  }
  static Result<Session> open_bytes(const void* data, size_t bytes, const OpenOptions& options = {}) {
    return make(options, [&](const capsedge_open_options* o, capsedge_session** s) { return capsedge_open_bytes(data, bytes, o, s); });
  }
  Session(Session&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Session& operator=(Session&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Session() {
    if (handle_) capsedge_status_release(capsedge_close(handle_));
  }

  Result<capsedge_description> describe() const& {
    capsedge_description found = CAPSEDGE_DESCRIPTION_INIT;
    return checked(capsedge_describe(handle_, &found), found);
  }
  Result<capsedge_description> describe() const&& = delete;
  Result<std::string> class_name(int32_t index) const {
    const char* name = nullptr;
    if (Result<void> done(capsedge_class_name(handle_, index, &name)); !done) return done.error();
    return std::string(name);
  }
  // Of a regression's value.
  Result<ValueName> value_name(size_t index) const {
    const char *name = nullptr, *unit = nullptr;
    if (Result<void> done(capsedge_value_name(handle_, index, &name, &unit)); !done) return done.error();
    return ValueName{name, unit};
  }
  // A metadata property as stored in the file; null if there is none of this name.
  Result<const char*> property(const std::string& key) const& {
    const char* value = nullptr;
    if (Result<void> done(capsedge_property(handle_, key.c_str(), &value)); !done) return done.error();
    return value;
  }
  Result<const char*> property(const std::string& key) const&& = delete;
  Result<capsedge_port> input(size_t index) const& {
    capsedge_port found = CAPSEDGE_PORT_INIT;
    return checked(capsedge_input(handle_, index, &found), found);
  }
  Result<capsedge_port> input(size_t index) const&& = delete;
  Result<capsedge_port> output(size_t index) const& {
    capsedge_port found = CAPSEDGE_PORT_INIT;
    return checked(capsedge_output(handle_, index, &found), found);
  }
  Result<capsedge_port> output(size_t index) const&& = delete;

  Result<void> run(View<capsedge_tensor> inputs, std::vector<capsedge_tensor>& outputs) const {
    return Result<void>(capsedge_run(handle_, inputs.data(), inputs.size(), outputs.data(), outputs.size()));
  }
  // On memory of the session's GPU, in the order of a cudaStream_t; an engine does not wait for it.
  Result<void> run_on_stream(View<capsedge_tensor> inputs, std::vector<capsedge_tensor>& outputs, void* stream) const {
    return Result<void>(
        capsedge_run_on_stream(handle_, inputs.data(), inputs.size(), outputs.data(), outputs.size(), stream));
  }
  Result<void> warm_up(int64_t batch = 1, int32_t runs = 1) const {
    return Result<void>(capsedge_warm_up(handle_, batch, runs));
  }

  Result<capsedge_preprocessing> preprocessing() const& {
    capsedge_preprocessing found = CAPSEDGE_PREPROCESSING_INIT;
    return checked(capsedge_preprocessing_of(handle_, &found), found);
  }
  Result<capsedge_preprocessing> preprocessing() const&& = delete;
  // One image as the model's input [channels, height, width].
  Result<std::vector<float>> prepare(const capsedge_image& image, bool invert = false) const {
    Result<capsedge_preprocessing> p = preprocessing();
    if (!p) return p.error();
    std::vector<float> values(static_cast<size_t>(p->channels) * static_cast<size_t>(p->height) * static_cast<size_t>(p->width));
    if (Result<void> done(capsedge_prepare(&*p, &image, invert, values.data(), values.size())); !done) return done.error();
    return values;
  }

  // Into a reused prediction: nothing is allocated once it has held a batch of this size.
  Result<void> predict(View<capsedge_image> images, Prediction& to, const PredictOptions& options = {}) const {
    return Result<void>(capsedge_predict(handle_, images.data(), images.size(), &options, to.handle()));
  }
  Result<Prediction> predict(const capsedge_image& image, const PredictOptions& options = {}) const {
    Result<Prediction> made = Prediction::create();
    if (!made) return made;
    if (Result<void> done = predict(View<capsedge_image>(&image, 1), *made, options); !done) return done.error();
    return made;
  }

  Result<capsedge_decoder> decoder() const {
    capsedge_decoder found = CAPSEDGE_DECODER_INIT;
    return checked(capsedge_decoder_of(handle_, &found), found);
  }
  // Pictures [count, classes, channels, height, width] of poses [count, classes, pose]; with a class for each pose,
  // pictures [count, channels, height, width] of poses [count, pose].
  Result<std::vector<float>> decode(View<float> poses, View<int32_t> classes = {}) const {
    Result<capsedge_decoder> sizes = decoder();
    if (!sizes) return sizes.error();
    const size_t of_pose = classes.empty() ? static_cast<size_t>(sizes->class_count) : 1;
    const size_t count = poses.size() / (of_pose * static_cast<size_t>(sizes->pose_size));
    if (count * of_pose * static_cast<size_t>(sizes->pose_size) != poses.size() || (!classes.empty() && classes.size() != count))
      return Error{CAPSEDGE_USAGE, "The poses do not fit the decoder and the classes."};
    std::vector<float> pictures(count * of_pose * static_cast<size_t>(sizes->channels) * static_cast<size_t>(sizes->height) *
                                static_cast<size_t>(sizes->width));
    Result<void> done(capsedge_decode(handle_, poses.data(), classes.empty() ? nullptr : classes.data(), count, pictures.data(),
                                      pictures.size()));
    if (!done) return done.error();
    return pictures;
  }

  Result<capsedge_counters> counters() const {
    capsedge_counters found = CAPSEDGE_COUNTERS_INIT;
    return checked(capsedge_read_counters(handle_, &found), found);
  }

  capsedge_session* handle() const& { return handle_; }
  capsedge_session* handle() const&& = delete;

 private:
  Session() = default;

  template <typename F>
  static Result<Session> make(const OpenOptions& options, F&& open) {
    capsedge_open_options given = CAPSEDGE_OPEN_OPTIONS_INIT;
    given.threads = options.threads;
    given.ops = options.ops;
    if (!options.onnxruntime.empty()) given.onnxruntime = options.onnxruntime.c_str();
    if (!options.tensorrt.empty()) given.tensorrt = options.tensorrt.c_str();
    given.device = options.device;
    given.contexts = options.contexts;
    given.provider = options.provider;
    given.graphs = options.graphs;
    if (!options.cuda_kernels.empty()) given.cuda_kernels = options.cuda_kernels.c_str();
    std::vector<const char*> outputs;
    for (const std::string& name : options.outputs) outputs.push_back(name.c_str());
    if (!outputs.empty()) {
      given.outputs = outputs.data();
      given.output_count = outputs.size();
    }
    Session made;
    if (Result<void> done(open(&given, &made.handle_)); !done) return done.error();
    return made;
  }

  // `found` is a reference, so it is read after the call has filled it.
  template <typename T>
  static Result<T> checked(capsedge_status* status, const T& found) {
    if (Result<void> done(status); !done) return done.error();
    return found;
  }

  capsedge_session* handle_ = nullptr;
};

}  // namespace capsedge

#endif
