// Every operator as a node of its own: shapes, attributes, types and values from the bytes, through the C interface.

#include "operators/operator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "capsedge/kernels.h"
#include "simd/dispatch.h"

using namespace capsedge;

namespace {

constexpr int64_t kMost = 1 << 14;  // elements of a tensor

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  int64_t below(int64_t most) { return next() % most; }
  // Mostly small, now and then anything.
  int64_t number(int64_t most) {
    const uint8_t first = next();
    if (first < 250) return 1 + first % most;
    if (first < 252) return 0;
    int64_t any = 0;
    for (int i = 0; i < 8; ++i) any = static_cast<int64_t>(static_cast<uint64_t>(any) << 8 | next());
    any %= 1 << 20;
    return first < 254 ? any : any % 1000;
  }
  // Bytes again from the start once they are used up: values of large tensors.
  void fill(void* to, size_t bytes) {
    auto* out = static_cast<uint8_t*>(to);
    for (size_t i = 0; i < bytes; ++i) out[i] = size_ ? data_[(at_ + i) % size_] : 0;
    at_ = std::min(size_, at_ + bytes);
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

struct Given {
  Shape shape;
  int32_t type;
  std::vector<char> memory;
};

size_t width_of(int32_t type) {
  return type == CAPSEDGE_KERNEL_FLOAT || type == CAPSEDGE_KERNEL_INT32 ? 4 : type == CAPSEDGE_KERNEL_FLOAT16 ? 2 : 1;
}

const char* const kNames[] = {"Squash", "DynamicRouting", "VoteRouting", "EMRouting", "AttentionRouting",
                              "SelfAttentionRouting", "UniformRouting", "PoseNormalization", "QuantizedConv",
                              "QuantizedDynamicRouting", "QuantizedEMRouting", "QuantizedAttentionRouting",
                              "QuantizedSelfAttentionRouting", "QuantizedUniformRouting"};
static_assert(std::size(kNames) == kOperatorCount, "an operator is not fuzzed");

// Shapes that fit each other: letters as in docs/reference/operators.md. A mutation afterwards makes some that do not.
std::vector<Given> inputs_of(const std::string& name, Bytes& b, bool matrix, int32_t floating) {
  const int64_t n = b.below(3), h = b.number(5), w = b.number(5), c = b.number(6), m = b.number(20), side = b.number(4);
  const int64_t kh = std::min<int64_t>(b.number(3), h), kw = std::min<int64_t>(b.number(3), w);
  const int64_t i = b.number(24), pin = b.number(9), pout = b.number(17);
  const int64_t p = matrix ? side * side : pin, columns = matrix ? side : pout, inner = matrix ? side : pin;
  const int64_t size = matrix ? side * side : pout;
  const Shape pose{n, h, w, c, p}, weight{kh, kw, c, m, inner, columns};
  const int64_t stride = 1;
  const Shape parent{n, (h - kh) / stride + 1, (w - kw) / stride + 1, m, size};
  constexpr int32_t F = CAPSEDGE_KERNEL_FLOAT, I8 = CAPSEDGE_KERNEL_INT8, U8 = CAPSEDGE_KERNEL_UINT8;
  const bool quantized = name.rfind("Quantized", 0) == 0;
  std::vector<Given> in;
  const auto add = [&](Shape shape, int32_t type) { in.push_back({std::move(shape), type, {}}); };
  const auto add_weight = [&](Shape shape, Shape scale) {
    add(std::move(shape), quantized ? I8 : floating);
    if (quantized) add(std::move(scale), F);
  };
  if (name == "Squash") {
    add({n, h, w, c}, floating);
  } else if (name == "PoseNormalization") {
    add(pose, floating), add({p}, floating), add({p}, floating);
  } else if (name == "QuantizedConv") {
    add({n, c, h, w}, U8), add({}, F), add({}, U8), add({m, c, kh, kw}, I8), add({m}, F), add({m}, I8);
    add({}, F), add({}, U8), add({m}, CAPSEDGE_KERNEL_INT32);
  } else if (name.find("Dynamic") != std::string::npos) {
    add({n, i, pin}, floating);
    add_weight({b.below(2) ? 1 : i, m, pout, pin}, {m, pout});
    add({b.below(4) ? i : 1, m}, floating);
    add({m, pout}, floating);
    const uint64_t more = b.below(4);  // optional inputs
    if (more > 0) add({b.below(2) ? 1 : i, m, pout}, floating);
    if (more > 1) add({b.below(2) ? 1 : n, b.below(2) ? 1 : i, b.below(2) ? 1 : m}, floating);
    if (more > 2) add({b.below(2) ? 1 : n, b.below(2) ? 1 : i}, floating);
  } else if (name == "VoteRouting") {
    add({n, i, b.below(4) ? m : 1, pout}, floating), add({b.below(4) ? i : 1, m}, floating), add({m, pout}, floating);
    const uint64_t more = b.below(3);
    if (more > 0) add({b.below(2) ? 1 : n, b.below(2) ? 1 : i, b.below(2) ? 1 : m}, floating);
    if (more > 1) add({b.below(2) ? 1 : n, b.below(2) ? 1 : i}, floating);
  } else if (name.find("SelfAttention") != std::string::npos) {
    add({n, i, pin}, floating);
    add_weight({i, m, pout, pin}, {m, pout});
    add({i, m}, floating);
  } else if (name.find("EM") != std::string::npos) {
    add({n, h, w, c, side * side}, floating), add({n, h, w, c}, floating);
    add_weight({kh, kw, c, m, side, side}, {m, side});
    add({m}, floating), add({m}, floating);
    if (b.below(2)) add({h, w, side * side}, floating);
  } else if (name.find("Uniform") != std::string::npos) {
    add(pose, floating);
    add_weight(weight, {m, columns});
    add({size}, floating), add({size}, floating);
  } else {
    add(pose, floating), add(parent, floating);
    add_weight(weight, {m, columns});
    add({size}, floating), add({size}, floating);
  }
  return in;
}

void set_values(Given& given, Bytes& b, int mode) {
  given.memory.resize(static_cast<size_t>(elements(given.shape)) * width_of(given.type));
  b.fill(given.memory.data(), given.memory.size());
  if (mode != 0 || given.type != CAPSEDGE_KERNEL_FLOAT) return;
  // Ordinary numbers instead of any bits.
  for (size_t k = 0; k + 4 <= given.memory.size(); k += 4) {
    const float value = static_cast<float>(static_cast<int8_t>(given.memory[k])) / 16.0f;
    std::memcpy(given.memory.data() + k, &value, 4);
  }
}

using List = std::vector<capsedge_kernel_attribute>;

class Listed : public AttributeSource {
 public:
  explicit Listed(const List& list) : list_(list) {}
  bool find(const char* name, std::vector<int64_t>& values) const override { return get(name, values); }
  bool find(const char* name, std::vector<float>& values) const override { return get(name, values); }

 private:
  template <typename T>
  bool get(const char* name, std::vector<T>& values) const {
    for (const capsedge_kernel_attribute& a : list_) {
      if (std::strcmp(a.name, name) != 0) continue;
      values.clear();
      for (int32_t i = 0; i < a.count; ++i) values.push_back(static_cast<T>(a.values[i]));
      return true;
    }
    return false;
  }

  const List& list_;
};

// Now and then an input of another shape or type than the rest want.
void make_one_odd(std::vector<Given>& in, Bytes& b) {
  const uint8_t change = b.next();
  if (change >= 240 && !in.empty()) {
    Given& odd = in[static_cast<size_t>(b.below(static_cast<int64_t>(in.size())))];
    if (change < 246 && !odd.shape.empty()) odd.shape[static_cast<size_t>(b.below(static_cast<int64_t>(odd.shape.size())))] = b.number(7);
    else if (change < 250) odd.type = static_cast<int32_t>(b.below(6));
    else if (change < 253) odd.shape.push_back(b.number(4));
    else if (!odd.shape.empty()) odd.shape.pop_back();
  }
}

void run_twice(capsedge_kernel* kernel, std::vector<Given>& in, const std::vector<Shape>& wanted, Bytes& b, int mode,
               int32_t threads) {
  char error[512] = "";
  std::vector<capsedge_kernel_tensor> given, found;
  for (Given& g : in) {
    set_values(g, b, mode);
    given.push_back({g.memory.data(), g.shape.data(), static_cast<int32_t>(g.shape.size()), g.type});
  }
  std::vector<std::vector<char>> rooms;
  for (const Shape& shape : wanted) {
    rooms.emplace_back(static_cast<size_t>(elements(shape)) * width_of(in[0].type));
    found.push_back({rooms.back().data(), shape.data(), static_cast<int32_t>(shape.size()), in[0].type});
  }
  if (b.next() & 1)  // weights as constants
    for (size_t k = 0; k < given.size(); ++k)
      if (given[k].rank >= 2 && k > 0) capsedge_kernel_constant(kernel, static_cast<int32_t>(k), &given[k], error, sizeof error);
  for (int round = 0; round < 2; ++round)
    capsedge_kernel_run(kernel, given.data(), static_cast<int32_t>(given.size()), found.data(), static_cast<int32_t>(found.size()), threads, error, sizeof error);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes b(data, size);
  const std::string name = kNames[b.below(std::size(kNames))];
  const std::vector<const Level*>& levels = levels_here();
  setenv("CAPSEDGE_SIMD", levels[static_cast<size_t>(b.below(static_cast<int64_t>(levels.size())))]->name, 1);
  const uint8_t flags = b.next();
  const bool matrix = flags & 1;
  const int32_t floating = flags & 2 ? CAPSEDGE_KERNEL_FLOAT16 : CAPSEDGE_KERNEL_FLOAT;
  const int mode = flags & 4 ? 1 : 0;
  const int32_t threads = flags & 8 && flags & 16 && flags & 32 ? 2 : 1;

  const double strides[2] = {flags & 64 ? static_cast<double>(b.number(4)) : 1.0, flags & 64 ? static_cast<double>(b.number(4)) : 1.0};
  const double dilations[2] = {flags & 128 ? static_cast<double>(b.number(3)) : 1.0, 1.0};
  const double pads[4] = {static_cast<double>(b.number(3) - 1), static_cast<double>(b.number(3) - 1), static_cast<double>(b.number(3) - 1), 0};
  const double on = matrix ? 1 : 0, epsilon = b.next() % 8 ? 1e-6 : static_cast<double>(b.number(200)) * 1e-40;
  const double leaky = b.next() & 1, iterations = static_cast<double>(std::min<int64_t>(b.number(3), 4)), agreement = 0.5, axis = static_cast<double>(b.number(4) - 2);
  const uint8_t rule = b.next();
  double rules[4];
  for (int k = 0; k < 4; ++k) rules[k] = rule >> k & 1;
  double temperatures[8];
  const int32_t temperature_count = static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(iterations), 0, 8));
  for (double& t : temperatures) t = static_cast<double>(b.next()) / 32;
  const List attributes{
      {"strides", strides, 2}, {"dilations", dilations, 2}, {"pads", pads, 4}, {"matrix_pose", &on, 1}, {"epsilon", &epsilon, 1},
      {"leaky", &leaky, 1}, {"iterations", &iterations, 1}, {"agreement_scale", &agreement, 1}, {"axis", &axis, 1},
      {"inverse_temperatures", temperatures, temperature_count}, {"coordinate_addition", &leaky, 1}, {"shared", &leaky, 1},
      {"over_children", &rules[0], 1}, {"replace", &rules[1], 1}, {"normalize", &rules[2], 1}, {"elementwise", &rules[3], 1},
      {"normalize_activations", &on, 1}, {"ones_first", &leaky, 1}};

  std::vector<Given> in = inputs_of(name, b, matrix, floating);
  make_one_odd(in, b);
  std::vector<Shape> shapes;
  for (const Given& given : in) {
    // Tensors that fit no memory do not come from a runtime.
    for (const int64_t d : given.shape)
      if (d < 0) return 0;
    if (elements(given.shape) > kMost) return 0;
    shapes.push_back(given.shape);
  }

  char error[512] = "";
  capsedge_kernel* kernel = nullptr;
  if (capsedge_kernel_create(name.c_str(), attributes.data(), static_cast<int32_t>(attributes.size()), &kernel, error, sizeof error) != 0) return 0;
  std::vector<Shape> wanted;
  try {
    wanted = make_operator(name, Listed(attributes), choose_level())->outputs(shapes);
  } catch (const std::exception&) {
    capsedge_kernel_destroy(kernel);
    return 0;
  }
  int64_t padded = 1;  // QuantizedConv makes a copy of the padded image
  for (const double pad : pads) padded += static_cast<int64_t>(std::min(std::abs(pad), 1e9));
  bool small = padded < 64 || name != "QuantizedConv";
  for (const Shape& shape : wanted) small = small && elements(shape) <= kMost;
  if (small) {
    run_twice(kernel, in, wanted, b, mode, threads);
  }
  capsedge_kernel_destroy(kernel);
  return 0;
}
