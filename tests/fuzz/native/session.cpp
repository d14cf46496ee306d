// A whole model: opened from bytes, run and asked. CAPSEDGE_ONNXRUNTIME names ONNX Runtime, which has no sanitizers.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "capsedge.h"

namespace {

constexpr size_t kMostBytes = 1 << 20;  // of one input or output; larger ones are not tried
constexpr int64_t kBatch = 2;

// True if it succeeded.
bool done(capsedge_status* status) {
  if (status == nullptr) return true;
  if (capsedge_status_code(status) == CAPSEDGE_INTERNAL) std::abort();
  if (*capsedge_status_message(status) == '\0') std::abort();
  capsedge_status_release(status);
  return false;
}

size_t bytes_of(const capsedge_port& port, capsedge_tensor& tensor) {
  static const size_t kSizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8};
  size_t bytes = port.type >= 0 && port.type < 14 ? kSizes[port.type] : 0;
  tensor.type = port.type;
  tensor.rank = port.rank;
  for (int i = 0; i < port.rank; ++i) {
    tensor.shape[i] = port.shape[i] < 0 ? kBatch : port.shape[i];
    if (tensor.shape[i] > static_cast<int64_t>(kMostBytes) || (bytes *= static_cast<size_t>(tensor.shape[i])) > kMostBytes) return kMostBytes + 1;
  }
  return bytes;
}

void run(capsedge_session* session, const capsedge_description& d) {
  if (d.input_count > CAPSEDGE_MAX_TENSORS || d.output_count > CAPSEDGE_MAX_TENSORS) return;
  std::vector<std::vector<unsigned char>> memory;
  std::vector<capsedge_tensor> inputs, outputs;
  for (size_t i = 0; i < d.input_count; ++i) {
    capsedge_port port = CAPSEDGE_PORT_INIT;
    if (!done(capsedge_input(session, i, &port))) return;
    capsedge_tensor tensor{};
    const size_t bytes = bytes_of(port, tensor);
    if (bytes > kMostBytes) return;
    memory.emplace_back(bytes, 0x3C);
    tensor.data = memory.back().data();
    tensor.bytes = bytes;
    inputs.push_back(tensor);
  }
  for (size_t i = 0; i < d.output_count; ++i) {
    memory.emplace_back(1 << 16, 0);
    capsedge_tensor tensor{};
    tensor.data = memory.back().data();
    tensor.bytes = memory.back().size();
    outputs.push_back(tensor);
  }
  done(capsedge_run(session, inputs.data(), inputs.size(), outputs.data(), outputs.size()));
}

void predict(capsedge_session* session) {
  unsigned char pixels[3 * 5 * 7];
  for (size_t i = 0; i < sizeof pixels; ++i) pixels[i] = static_cast<unsigned char>(i * 37);
  capsedge_image image{};
  image.pixels = pixels;
  image.type = CAPSEDGE_UINT8;
  image.height = 5, image.width = 7, image.channels = 3;
  capsedge_preprocessing how = CAPSEDGE_PREPROCESSING_INIT;
  if (!done(capsedge_preprocessing_of(session, &how)) ||
      int64_t{how.height} * how.width * how.channels * 4 > static_cast<int64_t>(kMostBytes))
    return;
  capsedge_prediction* prediction = nullptr;
  if (!done(capsedge_prediction_create(&prediction))) return;
  if (done(capsedge_predict(session, &image, 1, nullptr, prediction))) {
    capsedge_result result = CAPSEDGE_RESULT_INIT;
    if (!done(capsedge_prediction_result(prediction, 0, &result))) std::abort();
    for (size_t i = 0; i < result.label_count; ++i)
      if (result.labels[i].index < 0 || result.labels[i].index >= result.class_count || std::strlen(result.labels[i].name) > (1 << 20))
        std::abort();
  }
  done(capsedge_prediction_close(prediction));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  capsedge_open_options options = CAPSEDGE_OPEN_OPTIONS_INIT;
  options.threads = 1;
  options.ops = size > 0 && data[size - 1] % 2 ? CAPSEDGE_OPS_PORTABLE : CAPSEDGE_OPS_AUTO;
  capsedge_session* session = nullptr;
  if (!done(capsedge_open_bytes(data, size, &options, &session))) return 0;
  capsedge_description d = CAPSEDGE_DESCRIPTION_INIT;
  if (done(capsedge_describe(session, &d))) {
    run(session, d);
    predict(session);
  }
  done(capsedge_close(session));
  return 0;
}
