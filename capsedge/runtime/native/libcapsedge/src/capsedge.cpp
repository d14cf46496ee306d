// The C interface: handles, statuses and structures on the outside, exceptions on the inside.

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "capsedge.h"
#include "support/error.h"
#include "failure.h"
#include "frames.h"
#include "generated/limits.h"
#include "handles.h"
#include "open.h"
#include "prediction.h"
#include "text.h"
#include "vocabulary.h"

struct capsedge_status {
  capsedge_code code;
  std::string message;
};

namespace {

using namespace capsedge;
using namespace capsedge::libcapsedge;

using Sessions = Handles<Session, capsedge_session, 1>;
using Predictions = Handles<Prediction, capsedge_prediction, 2>;

// Never destroyed: other threads may be in a call when the process ends.
Sessions& sessions() {
  static Sessions& table = *new Sessions("session");
  return table;
}
Predictions& predictions() {
  static Predictions& table = *new Predictions("prediction");
  return table;
}

// Returned when there is no memory for another.
capsedge_status* no_memory() {
  static capsedge_status& status = *new capsedge_status{CAPSEDGE_ENVIRONMENT, "There is not enough memory."};
  return &status;
}
capsedge_status* const kNoMemory = no_memory();  // made when the library is loaded

capsedge_status* status_of(capsedge_code code, std::string message) noexcept {
  try {
    return new capsedge_status{code, std::move(message)};
  } catch (...) {
    return kNoMemory;
  }
}

template <typename F>
capsedge_status* guarded(F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Failure& failure) {
    return status_of(failure.code(), failure.what());
  } catch (const Error& error) {  // of ONNX Runtime, or of an operator while a session is made
    return status_of(CAPSEDGE_ENVIRONMENT, printable(error.what()));
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {
    return kNoMemory;
  } catch (const std::exception& error) {
    return status_of(CAPSEDGE_INTERNAL, printable(error.what()));
  } catch (...) {
    return status_of(CAPSEDGE_INTERNAL, "Something unknown was thrown.");
  }
}

template <typename T>
T* required(T* pointer, const char* name) {
  if (pointer == nullptr) fail_usage(std::string("The argument '") + name + "' is null.");
  return pointer;
}

// The caller's structure, which may be an older, shorter version, or a newer one whose additional members are zero.
template <typename T>
T read_options(const T* given, const char* name) {
  T options{};
  if (given == nullptr) return options;
  if (given->size < sizeof given->size || given->size > 4096)
    fail_usage(std::string(name) + ".size is " + std::to_string(given->size) + ".", "Expected: sizeof(" + std::string(name) + ").",
               "Start from its INIT macro.");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < given->size; ++i)
    if (bytes[i] != 0)
      fail_usage("The program sets an option that this libcapsedge does not know.", std::string("It is in ") + name + ".",
                 "Use a libcapsedge as new as the header that the program was compiled with.");
  std::memcpy(&options, given, std::min(given->size, sizeof(T)));
  return options;
}

// Fills the part of the caller's structure that exists.
template <typename T>
void write_result(T result, T* to, const char* name) {
  required(to, name);
  if (to->size < sizeof to->size || to->size > 4096)
    fail_usage(std::string(name) + "->size is " + std::to_string(to->size) + ".", "Expected: sizeof the structure.",
               "Start from its INIT macro.");
  result.size = to->size;
  std::memcpy(to, &result, std::min(to->size, sizeof(T)));
}

OpenOptions options_of(const capsedge_open_options* options) {
  const capsedge_open_options given = read_options(options, "capsedge_open_options");
  if (given.threads < 0 || given.threads > limits::kRunThreads)
    fail_usage("threads is " + std::to_string(given.threads) + ".", "It must be 1 to " + std::to_string(limits::kRunThreads) + ", or 0 for one per core.");
  if (given.ops < CAPSEDGE_OPS_AUTO || given.ops > CAPSEDGE_OPS_PORTABLE)
    fail_usage("ops is " + std::to_string(given.ops) + ".", "Expected: a capsedge_ops.");
  if (given.outputs != nullptr && given.output_count == 0) fail_usage("No output is left.", "output_count is 0.");
  OpenOptions read;
  read.threads = given.threads;
  read.ops = static_cast<capsedge_ops>(given.ops);
  if (given.onnxruntime) read.onnxruntime = given.onnxruntime;
  if (given.tensorrt) read.tensorrt = given.tensorrt;
  read.all_outputs = given.outputs == nullptr;
  for (size_t i = 0; given.outputs && i < given.output_count; ++i)
    read.outputs.emplace_back(required(given.outputs[i], "outputs"));
  read.device = given.device;
  if (given.contexts > limits::kEngineCalls)
    fail_usage("contexts is " + std::to_string(given.contexts) + ".", "It must be 1 to " + std::to_string(limits::kEngineCalls) + ", or 0 for 4.");
  read.contexts = given.contexts;
  if (given.provider < CAPSEDGE_PROVIDER_CPU || given.provider > CAPSEDGE_PROVIDER_CUDA)
    fail_usage("provider is " + std::to_string(given.provider) + ".", "Expected: a capsedge_provider.");
  if (given.graphs < CAPSEDGE_GRAPHS_AUTO || given.graphs > CAPSEDGE_GRAPHS_OFF)
    fail_usage("graphs is " + std::to_string(given.graphs) + ".", "Expected: a capsedge_graphs.");
  read.provider = static_cast<capsedge_provider>(given.provider);
  read.graphs = static_cast<capsedge_graphs>(given.graphs);
  if (given.cuda_kernels) read.cuda_kernels = given.cuda_kernels;
  return read;
}

void fill(const std::vector<Port>& ports, size_t index, capsedge_port* to) {
  if (index >= ports.size())
    fail_usage("There is no number " + std::to_string(index) + ".", "The model has " + std::to_string(ports.size()) + ".");
  const Port& port = ports[index];
  capsedge_port found{};
  found.name = port.name.c_str();
  found.type = port.type;
  found.rank = static_cast<int32_t>(std::min<size_t>(port.shape.size(), CAPSEDGE_MAX_RANK));
  std::copy_n(port.shape.begin(), found.rank, found.shape);
  write_result(found, to, "port");
}

// A call whose failures the session counts.
template <typename F>
void counted(const Session& session, F&& f) {
  try {
    f();
  } catch (...) {
    session.counters().failed.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

}  // namespace

capsedge_code capsedge_status_code(const capsedge_status* status) { return status ? status->code : CAPSEDGE_OK; }

const char* capsedge_status_message(const capsedge_status* status) { return status ? status->message.c_str() : ""; }

void capsedge_status_release(capsedge_status* status) {
  if (status != kNoMemory) delete status;
}

const char* capsedge_version(void) { return CAPSEDGE_VERSION; }

capsedge_status* capsedge_open(const char* path, const capsedge_open_options* options, capsedge_session** session) {
  return guarded([&] {
    *required(session, "session") = nullptr;
    const std::string name = required(path, "path");
    *session = sessions().add(open_file(name, options_of(options)));
  });
}

capsedge_status* capsedge_open_bytes(const void* data, size_t bytes, const capsedge_open_options* options,
                                     capsedge_session** session) {
  return guarded([&] {
    *required(session, "session") = nullptr;
    if (bytes > 0) required(data, "data");
    *session = sessions().add(open_onnx({static_cast<const char*>(data), bytes}, "the model", options_of(options)));
  });
}

capsedge_status* capsedge_close(capsedge_session* session) {
  return guarded([&] { sessions().close(session); });
}

capsedge_status* capsedge_describe(capsedge_session* session, capsedge_description* description) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    capsedge_description d{};
    d.backend = s->backend().name();
    d.backend_version = s->backend().version().c_str();
    d.ops = s->ops();
    d.input_count = s->backend().inputs().size();
    d.output_count = s->backend().outputs().size();
    d.batch = s->batch();
    d.smallest_batch = d.batch > 0 ? d.batch : s->backend().smallest_batch();
    d.largest_batch = d.batch > 0 ? d.batch : s->backend().largest_batch();
    d.no_graph_reason = s->backend().no_graph_reason();
    d.no_kernel_reason = s->no_kernel_reason();
    if (const auto& m = s->metadata()) {
      d.architecture = m->architecture.c_str();
      d.routing = m->routing.c_str();
      d.task = text_of(m->task);
      d.precision = m->precision.c_str();
      d.iterations = m->iterations;
      d.class_count = static_cast<int32_t>(s->class_names()->size());
    }
    if (s->roles().possible) d.score_kind = s->roles().kind;
    if (s->roles().possible) d.value_count = s->roles().values;
    write_result(d, description, "description");
  });
}

capsedge_status* capsedge_class_name(capsedge_session* session, int32_t index, const char** name) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const std::vector<std::string>& names = *s->class_names();
    if (index < 0 || static_cast<size_t>(index) >= names.size())
      fail_usage("There is no class " + std::to_string(index) + ".", "The model has " + std::to_string(names.size()) + ".");
    *required(name, "name") = names[static_cast<size_t>(index)].c_str();
  });
}

capsedge_status* capsedge_value_name(capsedge_session* session, size_t index, const char** name, const char** unit) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const size_t count = s->roles().values;
    if (index >= count)
      fail_usage("There is no value " + std::to_string(index) + ".", "The model has " + std::to_string(count) + ".");
    const DeclaredOutputs& declared = *s->metadata()->outputs;  // a model with values has them
    *required(name, "name") = declared.names[index].c_str();
    if (unit) *unit = declared.units[index].c_str();
  });
}

capsedge_status* capsedge_property(capsedge_session* session, const char* key, const char** value) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const std::string* const found = s->property(required(key, "key"));
    *required(value, "value") = found ? found->c_str() : nullptr;
  });
}

capsedge_status* capsedge_input(capsedge_session* session, size_t index, capsedge_port* port) {
  return guarded([&] { fill(Sessions::Hold(sessions(), session)->backend().inputs(), index, port); });
}

capsedge_status* capsedge_output(capsedge_session* session, size_t index, capsedge_port* port) {
  return guarded([&] { fill(Sessions::Hold(sessions(), session)->backend().outputs(), index, port); });
}

capsedge_status* capsedge_run(capsedge_session* session, const capsedge_tensor* inputs, size_t input_count,
                              capsedge_tensor* outputs, size_t output_count) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    counted(*s, [&] {
      if (input_count > 0) required(inputs, "inputs");
      if (output_count > 0) required(outputs, "outputs");
      s->run(inputs, input_count, outputs, output_count);
    });
  });
}

capsedge_status* capsedge_run_on_stream(capsedge_session* session, const capsedge_tensor* inputs, size_t input_count,
                                        capsedge_tensor* outputs, size_t output_count, void* stream) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    counted(*s, [&] {
      if (input_count > 0) required(inputs, "inputs");
      if (output_count > 0) required(outputs, "outputs");
      const GpuStream order{stream};
      s->run(inputs, input_count, outputs, output_count, &order);
    });
  });
}

capsedge_status* capsedge_warm_up(capsedge_session* session, int64_t batch, int32_t runs) {
  return guarded([&] { Sessions::Hold(sessions(), session)->warm_up(batch, runs); });
}

capsedge_status* capsedge_preprocessing_of(capsedge_session* session, capsedge_preprocessing* preprocessing) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const Preprocessing& p = s->preprocessing();
    capsedge_preprocessing found{};
    found.height = p.height;
    found.width = p.width;
    found.channels = p.channels;
    found.scale = p.scale;
    found.mean = p.mean.data();
    found.std = p.std.data();
    found.mean_count = p.mean.size();
    found.std_count = p.std.size();
    found.resize = text_of(p.resize);
    found.per_image = text_of(p.per_image);
    found.channels_last = p.channels_last;
    found.bgr = p.bgr;
    write_result(found, preprocessing, "preprocessing");
  });
}

capsedge_status* capsedge_prepare(const capsedge_preprocessing* preprocessing, const capsedge_image* image, int32_t invert,
                                  float* values, size_t count) {
  return guarded([&] {
    const capsedge_preprocessing given = read_options(required(preprocessing, "preprocessing"), "capsedge_preprocessing");
    required(image, "image");
    required(values, "values");
    Preprocessing p;
    p.height = given.height;
    p.width = given.width;
    p.channels = given.channels;
    p.scale = given.scale;
    p.mean.assign(required(given.mean, "mean"), given.mean + given.mean_count);
    p.std.assign(required(given.std, "std"), given.std + given.std_count);
    p.resize = word_of<Resize>(required(given.resize, "resize"));
    p.per_image = word_of<PerImage>(given.per_image ? given.per_image : "");
    p.channels_last = given.channels_last != 0;
    p.bgr = given.bgr != 0;
    const std::string wrong = p.wrong();
    if (!wrong.empty()) fail_usage("The preprocessing is wrong.", wrong + ".");
    if (count < static_cast<size_t>(p.values()))
      fail_usage("There is no room for the input.",
                 "It takes " + std::to_string(p.values()) + " values; given: " + std::to_string(count) + ".");
    PrepareScratch scratch;
    prepare(p, *image, invert != 0, "the image", scratch, values);
  });
}

capsedge_status* capsedge_frame_to_rgb(const capsedge_frame* frame, uint8_t* rgb, size_t bytes) {
  return guarded([&] { frame_to_rgb(read_options(required(frame, "frame"), "capsedge_frame"), rgb, bytes); });
}

capsedge_status* capsedge_decoder_of(capsedge_session* session, capsedge_decoder* decoder) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const DecoderSizes& sizes = s->decoder().sizes();
    capsedge_decoder found{};
    found.class_count = static_cast<int32_t>(sizes.classes);
    found.pose_size = static_cast<int32_t>(sizes.pose);
    found.channels = static_cast<int32_t>(sizes.channels);
    found.height = static_cast<int32_t>(sizes.height);
    found.width = static_cast<int32_t>(sizes.width);
    write_result(found, decoder, "decoder");
  });
}

capsedge_status* capsedge_decode(capsedge_session* session, const float* poses, const int32_t* classes, size_t count,
                                 float* pictures, size_t values) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    const Decoder& decoder = s->decoder();
    decoder.decode(required(poses, "poses"), classes, count, required(pictures, "pictures"), values);
  });
}

capsedge_status* capsedge_prediction_create(capsedge_prediction** prediction) {
  return guarded([&] {
    *required(prediction, "prediction") = nullptr;
    *prediction = predictions().add(std::make_unique<Prediction>());
  });
}

capsedge_status* capsedge_prediction_close(capsedge_prediction* prediction) {
  return guarded([&] { predictions().close(prediction); });
}

capsedge_status* capsedge_predict(capsedge_session* session, const capsedge_image* images, size_t count,
                                  const capsedge_predict_options* options, capsedge_prediction* prediction) {
  return guarded([&] {
    const Sessions::Hold s(sessions(), session);
    counted(*s, [&] {
      const Predictions::Hold p(predictions(), prediction);
      if (count > 0) required(images, "images");
      const capsedge_predict_options given = read_options(options, "capsedge_predict_options");
      p->predict(*s, images, count, {given.top_k, given.use_threshold != 0, given.threshold, given.invert != 0});
    });
  });
}

capsedge_status* capsedge_prediction_count(capsedge_prediction* prediction, size_t* count) {
  return guarded([&] { *required(count, "count") = Predictions::Hold(predictions(), prediction)->count(); });
}

capsedge_status* capsedge_prediction_result(capsedge_prediction* prediction, size_t image, capsedge_result* result) {
  return guarded([&] {
    capsedge_result found{};
    Predictions::Hold(predictions(), prediction)->result(image, found);
    write_result(found, result, "result");
  });
}

capsedge_status* capsedge_read_counters(capsedge_session* session, capsedge_counters* counters) {
  return guarded([&] {
    const Counters& c = Sessions::Hold(sessions(), session)->counters();
    constexpr auto relaxed = std::memory_order_relaxed;
    capsedge_counters found{};
    found.runs = c.runs.load(relaxed);
    found.images = c.images.load(relaxed);
    found.failed = c.failed.load(relaxed);
    found.prepare_ns = c.prepare_ns.load(relaxed);
    found.run_ns = c.run_ns.load(relaxed);
    found.longest_run_ns = c.longest_run_ns.load(relaxed);
    write_result(found, counters, "counters");
  });
}
