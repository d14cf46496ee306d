#include "session.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "failure.h"
#include "generated/limits.h"

namespace capsedge::libcapsedge {

namespace {

bool fits(int64_t found, int64_t declared) { return declared < 0 || found == declared; }

// Bytes of a value whose type and shape are set.
size_t bytes_of(const Value& value, const std::string& name) {
  size_t bytes = element_bytes(value.type);
  for (int32_t i = 0; i < value.rank; ++i)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(value.shape[i]), &bytes))
      fail_usage("Output '" + name + "' has a shape that fits no memory.", shape_text(value.shape, static_cast<size_t>(value.rank)));
  return bytes;
}

// Bytes of one run's inputs and outputs, as far as the file fixes their sizes; more than limits::kRunBytes on overflow.
int64_t fixed_bytes(const std::vector<Port>& ports) {
  int64_t sum = 0;
  for (const Port& port : ports) {
    auto bytes = std::max<int64_t>(1, static_cast<int64_t>(element_bytes(port.type)));
    // A size of zero counts as one, so that parts of the product are bounded too.
    for (const int64_t d : port.shape)
      if (d > 0 && __builtin_mul_overflow(bytes, d, &bytes)) return limits::kRunBytes + 1;
    if (__builtin_add_overflow(sum, bytes, &sum)) return limits::kRunBytes + 1;
  }
  return sum;
}

// The bits of numbers without signs sort like their values.
template <typename T>
bool all_below(const void* data, size_t count, T bound) {
  const auto* bits = static_cast<const T*>(data);
  constexpr T kMagnitude = static_cast<T>(~T{0}) >> 1;
  bool below = true;
  for (size_t i = 0; i < count; ++i) below &= (bits[i] & kMagnitude) < bound;
  return below;
}

// Floating-point values that are finite, and of our models below 2^32, with which squares fit a float also behind layers; true
// for other types. Other tools' models may take the most negative number for a mask.
bool is_moderate(const void* data, size_t count, int32_t type, bool ours) {
  if (type == CAPSEDGE_FLOAT32) return all_below<uint32_t>(data, count, (ours ? 127u + 32u : 255u) << 23);
  if (type == CAPSEDGE_FLOAT16) return all_below<uint16_t>(data, count, 0x7C00u);
  if (type == CAPSEDGE_FLOAT64) return all_below<uint64_t>(data, count, uint64_t{ours ? 1023u + 32u : 0x7FFu} << 52);
  return true;
}

// The index of an input or output, by name or by order.
size_t place_of(const std::vector<Port>& ports, const char* name, size_t order, const char* kind) {
  if (name == nullptr) {
    if (order < ports.size()) return order;
    fail_usage("The model has " + std::to_string(ports.size()) + " " + kind + "s.", "Number " + std::to_string(order) + " was given.");
  }
  for (size_t i = 0; i < ports.size(); ++i)
    if (ports[i].name == name) return i;
  std::vector<std::string> names;
  for (const Port& port : ports) names.push_back(port.name);
  fail_usage(std::string("The model has no ") + kind + " '" + name + "'.", std::string("Its ") + kind + "s: " + joined(names) + ".");
}

// The first index that is outside a table of this size, and the number of such indices.
template <typename T>
void check_indices(const std::string& name, const void* data, size_t count, int64_t entries) {
  const auto* at = static_cast<const T*>(data);
  const auto beyond = [entries](T index) { return index < 0 || int64_t{index} >= entries; };
  const auto wrong = std::count_if(at, at + count, beyond);
  if (wrong == 0) return;
  fail_usage("Input '" + name + "' has an index that its table does not have.",
             "Found: " + std::to_string(*std::find_if(at, at + count, beyond)) +
                 (wrong > 1 ? " and " + std::to_string(wrong - 1) + " more" : "") + "; expected: 0 to " +
                 std::to_string(entries - 1) + ".",
             "Give unknown items an index that the network was trained with, such as that of its padding.");
}

// `readable`: whether its values are in memory of the host, and so can be looked at. `ours`: the model is capsedge's.
Value checked_input(const Port& port, size_t place, const capsedge_tensor& tensor, bool readable, bool ours,
                    const InputBounds& bounds) {
  if (port.type == CAPSEDGE_OTHER)
    throw Failure(CAPSEDGE_UNSUPPORTED, "Input '" + port.name + "' has a type that this library does not run.", "", "");
  if (tensor.type != port.type)
    fail_usage("Input '" + port.name + "' has the type " + type_name(tensor.type) + ".",
               std::string("Expected: ") + type_name(port.type) + ".", "Convert the values.");
  bool good = tensor.rank == static_cast<int32_t>(port.shape.size());
  for (size_t i = 1; good && i < port.shape.size(); ++i)
    good = tensor.shape[i] >= 0 && fits(tensor.shape[i], port.shape[i]);
  const bool rows_differ = good && !port.shape.empty() && !(tensor.shape[0] >= 0 && fits(tensor.shape[0], port.shape[0]));
  if (!good || rows_differ)
    fail_usage("Input '" + port.name + "' has the shape " +
                   shape_text(tensor.shape, static_cast<size_t>(std::clamp<int32_t>(tensor.rank, 0, CAPSEDGE_MAX_RANK))) + ".",
               "Expected: " + shape_text(port.shape.data(), port.shape.size()) + ".",
               rows_differ && port.shape[0] > 0
                   ? "The batch is fixed: pass " + std::to_string(port.shape[0]) + " in each run, and fill up the last one."
               : tensor.type == CAPSEDGE_INT64 || tensor.type == CAPSEDGE_INT32
                   ? "Pad shorter inputs, such as a history, as in training, and cut longer ones."
                   : "Reshape the values, or prepare the image with capsedge_prepare.");
  for (int32_t i = 1; i < tensor.rank; ++i)
    if (tensor.shape[i] == 0)
      fail_usage("Input '" + port.name + "' has an empty axis.",
                 "Its shape is " + shape_text(tensor.shape, static_cast<size_t>(tensor.rank)) + "; only the batch may be empty.",
                 "Represent an empty history by one element of padding.");
  for (size_t i = 0; i < bounds.longest.size(); ++i)
    if (const int64_t most = bounds.longest[i]; most > 0 && tensor.shape[i] > most)
      fail_usage("Input '" + port.name + "' is too long for the network.",
                 "Its shape is " + shape_text(tensor.shape, static_cast<size_t>(tensor.rank)) + ", and axis " +
                     std::to_string(i) + " has at most " + std::to_string(most) + ".",
                 "Keep the " + std::to_string(most) + " elements that count, such as the last of a history.");
  Value value;
  value.port = place;
  value.data = tensor.data;
  value.bytes = tensor.bytes;
  value.type = tensor.type;
  value.rank = tensor.rank;
  size_t bytes = element_bytes(tensor.type);
  for (int32_t i = 0; i < tensor.rank; ++i) {
    value.shape[i] = tensor.shape[i];
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(tensor.shape[i]), &bytes))
      fail_usage("Input '" + port.name + "' has a shape that fits no memory.");
  }
  if (bytes != tensor.bytes || (bytes > 0 && tensor.data == nullptr))
    fail_usage("Input '" + port.name + "' has " + std::to_string(tensor.data ? tensor.bytes : 0) + " bytes.",
               "Its shape takes " + std::to_string(bytes) + ".");
  if (readable && !is_moderate(tensor.data, bytes / element_bytes(tensor.type), tensor.type, ours))
    fail_usage("Input '" + port.name + "' has values that are NaN or infinite" + (ours ? ", or of 2^32 and more." : "."),
               ours ? "Expected: finite numbers below 2^32." : "Expected: finite numbers.",
               "Clean the values before inference.");
  if (readable && bounds.entries >= 0 && tensor.type == CAPSEDGE_INT64)
    check_indices<int64_t>(port.name, tensor.data, bytes / sizeof(int64_t), bounds.entries);
  if (readable && bounds.entries >= 0 && tensor.type == CAPSEDGE_INT32)
    check_indices<int32_t>(port.name, tensor.data, bytes / sizeof(int32_t), bounds.entries);
  return value;
}

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace

Session::Session(std::string name, Model model)
    : name_(std::move(name)), properties_(std::move(model.properties)), metadata_(std::move(model.metadata)),
      fused_(model.fused), expanded_routing_(model.expanded_routing),
      no_kernel_reason_(printable(model.no_kernel_reason)), backend_(std::move(model.backend)),
      decoder_(std::move(model.decoder)) {
  check_sizes();
  if (metadata_) check_metadata(model.outputs);
  const std::map<std::string, InputBounds> stated = read_input_bounds(properties_);
  for (const Port& port : backend_->inputs()) {
    const auto found = stated.find(port.name);
    bounds_.push_back(found == stated.end() ? InputBounds() : found->second);
    if (const size_t axes = bounds_.back().longest.size(); axes != 0 && axes != port.shape.size())
      throw unreadable_inputs("lengths of " + std::to_string(axes) + " axes of '" + port.name + "', which has " +
                              std::to_string(port.shape.size()));
  }
  roles_ = output_roles(metadata_ ? &*metadata_ : nullptr, *backend_);
  class_names_ = std::make_shared<const std::vector<std::string>>(roles_.class_names);
}

void Session::check_sizes() const {
  for (const std::vector<Port>* ports : {&backend_->inputs(), &backend_->outputs()}) {
    const int64_t bytes = fixed_bytes(*ports);
    if (bytes > limits::kRunBytes)
      throw Failure(CAPSEDGE_ARTEFACT, name_ + " fixes sizes that are too large.",
                    std::string("One run would take over ") + std::to_string(limits::kRunBytes >> 20) + " MiB of " +
                        (ports == &backend_->inputs() ? "inputs" : "outputs") + ".",
                    "Export it with a free batch or a smaller one.");
  }
}

void Session::check_metadata(const std::vector<std::string>& output_names) const {
  const std::string why = misfit(*metadata_, *backend_, output_names);
  if (!why.empty())
    throw Failure(CAPSEDGE_ARTEFACT, "The metadata of " + name_ + " does not fit its graph.", why,
                  "Export the model again with `capsedge export`, or correct its metadata with `capsedge optimize`.");
}

const std::string* Session::property(const std::string& key) const {
  const auto found = properties_.find(key);
  return found == properties_.end() ? nullptr : &found->second;
}

size_t Session::batch_input() const {
  const std::vector<Port>& inputs = backend_->inputs();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].shape.empty() && inputs[i].shape[0] < 0) return i;
  return 0;
}

int64_t Session::batch() const {
  const std::vector<Port>& inputs = backend_->inputs();
  const size_t i = batch_input();
  return i >= inputs.size() || inputs[i].shape.empty() ? -1 : inputs[i].shape[0];
}

const Preprocessing& Session::preprocessing() const {
  if (!metadata_ || !metadata_->preprocessing)
    throw Failure(CAPSEDGE_ARTEFACT, name_ + " does not state how to prepare an image.",
                  "Its metadata has no preprocessing.",
                  "Pass prepared values to capsedge_run, or set the preprocessing during export.");
  return *metadata_->preprocessing;
}

const Decoder& Session::decoder() const {
  if (decoder_) return *decoder_;
  const bool whole = std::strcmp(backend_->name(), "tensorrt") == 0;
  fail_usage(name_ + " cannot decode poses.", whole ? "A TensorRT engine runs as a whole." : "It has no outputs 'poses' and 'reconstruction'.",
             whole ? "Open the ONNX file that the engine was built from."
                   : "Export the model with its decoder: `capsedge export --with reconstruction`; and leave both among the outputs to open.");
}

bool Session::shape_for(int64_t batch, Value& output) const {
  const Port& port = backend_->outputs()[output.port];
  if (port.type == CAPSEDGE_OTHER || port.shape.empty()) return false;
  output.rank = static_cast<int32_t>(port.shape.size());
  for (size_t i = 0; i < port.shape.size(); ++i) {
    output.shape[i] = i == 0 && port.shape[0] < 0 ? batch : port.shape[i];
    if (output.shape[i] < 0) return false;
  }
  output.type = port.type;
  return true;
}

void Session::run_values(const Value* inputs, size_t input_count, Value* outputs, size_t output_count,
                         int64_t images, const GpuStream* stream) const {
  const uint64_t start = now_ns();
  if (stream) backend_->run_on_stream(inputs, input_count, outputs, output_count, stream->handle);
  else backend_->run(inputs, input_count, outputs, output_count);
  const uint64_t took = now_ns() - start;
  constexpr auto relaxed = std::memory_order_relaxed;
  counters_.runs.fetch_add(1, relaxed);
  counters_.images.fetch_add(static_cast<uint64_t>(images), relaxed);
  counters_.run_ns.fetch_add(took, relaxed);
  uint64_t longest = counters_.longest_run_ns.load(relaxed);
  while (took > longest && !counters_.longest_run_ns.compare_exchange_weak(longest, took, relaxed)) {
  }
}

void Session::check_batches(const Value* given, size_t count) const {
  // Only of our own files is it known that the first dimension is the batch.
  const bool ours = metadata_ || std::any_of(bounds_.begin(), bounds_.end(), [](const InputBounds& b) { return b.stated(); });
  const std::vector<Port>& ports = backend_->inputs();
  const Value* first = nullptr;
  for (size_t i = 0; ours && i < count; ++i) {
    if (given[i].rank == 0 || ports[given[i].port].shape[0] >= 0) continue;
    if (first == nullptr) first = &given[i];
    if (given[i].shape[0] != first->shape[0])
      fail_usage("Inputs '" + ports[first->port].name + "' and '" + ports[given[i].port].name + "' do not fit together.",
                 "The batch is " + std::to_string(first->shape[0]) + " in the one and " + std::to_string(given[i].shape[0]) +
                     " in the other.",
                 "Pass every input for the same samples.");
  }
}

void Session::run(const capsedge_tensor* inputs, size_t input_count, capsedge_tensor* outputs, size_t output_count,
                  const GpuStream* stream) const {
  const std::vector<Port>& wanted = backend_->inputs();
  if (wanted.size() > CAPSEDGE_MAX_TENSORS || output_count > CAPSEDGE_MAX_TENSORS)
    throw Failure(CAPSEDGE_UNSUPPORTED, "A run has at most " + std::to_string(CAPSEDGE_MAX_TENSORS) + " inputs and outputs.", "", "");
  if (input_count != wanted.size()) {
    std::vector<std::string> names;
    for (const Port& port : wanted) names.push_back(port.name);
    fail_usage("The model has " + std::to_string(wanted.size()) + " inputs, and " + std::to_string(input_count) + " were given.",
               "Its inputs: " + joined(names) + ".");
  }
  if (output_count == 0) fail_usage("No output was requested.");
  Value given[CAPSEDGE_MAX_TENSORS];
  bool have[CAPSEDGE_MAX_TENSORS] = {};
  for (size_t i = 0; i < input_count; ++i) {
    const size_t place = place_of(wanted, inputs[i].name, i, "input");
    if (have[place]) fail_usage("Input '" + wanted[place].name + "' was given twice.");
    have[place] = true;
    given[i] = checked_input(wanted[place], place, inputs[i], stream == nullptr, metadata_.has_value(), bounds_[place]);
  }
  int64_t batch = 1;
  for (size_t i = 0; i < input_count; ++i)
    if (given[i].port == batch_input() && given[i].rank > 0) batch = given[i].shape[0];
  check_batches(given, input_count);
  const bool empty = metadata_ && batch == 0;
  Value found[CAPSEDGE_MAX_TENSORS];
  for (size_t i = 0; i < output_count; ++i) {
    Value& value = found[i];
    value.port = place_of(backend_->outputs(), outputs[i].name, i, "output");
    value.data = outputs[i].data;
    value.bytes = outputs[i].bytes;
    const std::string& name = backend_->outputs()[value.port].name;
    if (value.data == nullptr && value.bytes > 0) fail_usage("Output '" + name + "' has no memory.", "Its pointer is null.");
    // Only of our own files is it known that the first dimension is the batch.
    if (!metadata_ || !shape_for(batch, value)) {
      value.type = CAPSEDGE_OTHER;
      if (empty) fail_usage("The batch is empty, and output '" + name + "' has no shape without one.");
      continue;
    }
    const size_t bytes = bytes_of(value, name);
    if (bytes > value.bytes)
      fail_usage("Output '" + name + "' has no room.",
                 "It has the shape " + shape_text(value.shape, static_cast<size_t>(value.rank)) + " and takes " +
                     std::to_string(bytes) + " bytes; given: " + std::to_string(value.bytes) + ".");
    value.bytes = bytes;
  }
  // Not every operator of ONNX Runtime accepts empty tensors.
  if (!empty) run_values(given, input_count, found, output_count, batch, stream);
  for (size_t i = 0; i < output_count; ++i) {
    if (metadata_ && (found[i].rank < 1 || found[i].shape[0] != batch))
      throw Failure(CAPSEDGE_ARTEFACT, name_ + " computed a wrong number of rows of '" + backend_->outputs()[found[i].port].name + "'.",
                    "Its shape is " + shape_text(found[i].shape, static_cast<size_t>(found[i].rank)) + " for " + std::to_string(batch) +
                        " images.",
                    "Export the model again with `capsedge export`.");
    outputs[i].bytes = found[i].bytes;
    outputs[i].type = found[i].type;
    outputs[i].rank = found[i].rank;
    std::copy(found[i].shape, found[i].shape + CAPSEDGE_MAX_RANK, outputs[i].shape);
  }
}

void Session::warm_up(int64_t batch, int32_t runs) const {
  if (batch < 1 || batch > 65536 || runs < 1)
    fail_usage("warm-up wants a batch of 1 to 65536 and at least one run.",
               "Given: " + std::to_string(batch) + " and " + std::to_string(runs) + ".");
  const std::vector<Port>& ports = backend_->inputs();
  std::vector<std::vector<unsigned char>> zeros, rooms;
  std::vector<capsedge_tensor> inputs, outputs;
  for (const Port& port : ports) {
    capsedge_tensor tensor{};
    tensor.type = port.type;
    tensor.rank = static_cast<int32_t>(port.shape.size());
    tensor.bytes = element_bytes(port.type);
    for (size_t i = 0; i < port.shape.size() && i < CAPSEDGE_MAX_RANK; ++i) {
      if (port.shape[i] < 0 && i > 0)
        throw Failure(CAPSEDGE_UNSUPPORTED, "Input '" + port.name + "' leaves sizes other than the batch open: " +
                      shape_text(port.shape.data(), port.shape.size()) + ".", "", "Warm up with capsedge_run.");
      tensor.shape[i] = port.shape[i] < 0 ? batch : port.shape[i];
      if (__builtin_mul_overflow(tensor.bytes, static_cast<size_t>(tensor.shape[i]), &tensor.bytes))
        fail_usage("Input '" + port.name + "' has a shape that fits no memory.");
    }
    zeros.emplace_back(tensor.bytes);
    tensor.data = zeros.back().data();
    inputs.push_back(tensor);
  }
  for (size_t i = 0; i < backend_->outputs().size() && i < CAPSEDGE_MAX_TENSORS; ++i) {
    Value value;
    value.port = i;
    if (!shape_for(batch, value)) continue;
    capsedge_tensor tensor{};
    tensor.name = backend_->outputs()[i].name.c_str();
    tensor.bytes = bytes_of(value, tensor.name);
    rooms.emplace_back(tensor.bytes);
    tensor.data = rooms.back().data();
    outputs.push_back(tensor);
  }
  for (int32_t k = 0; k < runs; ++k) {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].bytes = rooms[i].size();
    run(inputs.data(), inputs.size(), outputs.data(), outputs.size());
  }
}

}  // namespace capsedge::libcapsedge
