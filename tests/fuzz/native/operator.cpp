// Every operator as a node of its own: shapes, attributes, types and values from the bytes, through the C interface.

#include "operators/operator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

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

int32_t type_of(char letter, int32_t floating) {
  switch (letter) {
    case 'f': return CAPSEDGE_KERNEL_FLOAT;
    case 'i': return CAPSEDGE_KERNEL_INT32;
    case 'b': return CAPSEDGE_KERNEL_INT8;
    case 'B': return CAPSEDGE_KERNEL_UINT8;
    default: return floating;
  }
}

// The attributes of an operator, mostly as the table wants them. The numbers of a list of floats are one per iteration.
class RandomAttributes {
 public:
  RandomAttributes(const OperatorSpec& spec, Bytes& b) {
    for (const AttributeSpec& a : spec.attributes) values_.emplace_back(a.name, values_of(a, b));
    for (const auto& [name, values] : values_)
      list_.push_back({name, values.data(), static_cast<int32_t>(values.size())});
  }

  const std::vector<capsedge_kernel_attribute>& list() const { return list_; }
  // Of one that is absent: `otherwise`.
  int64_t integer(const char* wanted, size_t at, int64_t otherwise) const {
    for (const auto& [name, values] : values_)
      if (std::strcmp(name, wanted) == 0 && at < values.size()) return static_cast<int64_t>(values[at]);
    return otherwise;
  }

 private:
  std::vector<double> values_of(const AttributeSpec& a, Bytes& b) const {
    std::vector<double> values;
    if (a.flag) return {static_cast<double>(b.next() & 1)};
    if (a.is_integer()) {
      const bool wild = b.next() % 4 == 0;
      for (size_t k = 0; k < std::max<size_t>(1, a.integers.size()); ++k)
        values.push_back(static_cast<double>(!a.positive ? b.number(4) - 2 : wild ? b.number(4) : a.is_list() ? 1 : 1 + b.below(3)));
    } else if (a.is_list()) {
      const int64_t count = std::clamp<int64_t>(integer("iterations", 0, 1), 0, 8);
      for (int64_t k = 0; k < count; ++k) values.push_back(static_cast<double>(b.next()) / 32);
    } else {
      values.push_back(!a.positive ? 0.5 : b.next() % 8 ? 1e-6 : static_cast<double>(b.number(200)) * 1e-40);
    }
    return values;
  }

  std::vector<std::pair<const char*, std::vector<double>>> values_;
  std::vector<capsedge_kernel_attribute> list_;
};

// Shapes that fit each other, by the names of the table. A mutation afterwards makes some that do not.
std::vector<Given> inputs_of(const OperatorSpec& spec, const RandomAttributes& attributes, Bytes& b, int32_t floating) {
  const int64_t side = b.number(4);
  std::map<std::string, int64_t> sizes{{"N", b.below(3)}, {"H", b.number(5)}, {"W", b.number(5)}, {"C", b.number(6)}, {"M", b.number(20)},
                                       {"I", b.number(24)}, {"J", b.number(20)}, {"P", b.number(17)}, {"Pin", b.number(9)}, {"Pout", b.number(17)}};
  sizes["Kh"] = std::min<int64_t>(b.number(3), sizes["H"]), sizes["Kw"] = std::min<int64_t>(b.number(3), sizes["W"]);
  // Poses are matrices, or vectors; EM routing has no such flag.
  if (attributes.integer("matrix_pose", 0, 1)) sizes["K"] = sizes["L"] = side;
  if (attributes.integer("matrix_pose", 0, 1) && spec.find_dimension("K")) sizes["P"] = sizes["Pin"] = side * side;
  if (!attributes.integer("matrix_pose", 0, 1)) sizes["K"] = sizes["Pin"], sizes["L"] = sizes["P"];
  for (const WindowPositions& p : kWindowPositions) {
    const int64_t stride = std::max<int64_t>(1, attributes.integer("strides", p.axis, 1));
    sizes[std::string(p.name)] = (sizes[std::string(p.size)] - sizes[std::string(p.window)]) / stride + 1;
  }
  std::vector<Given> in;
  for (const Parameter& input : spec.inputs) {
    if (input.optional && b.below(2)) break;
    Shape shape;
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      const std::string name = input.shape[axis];
      if (name == "...") shape = {sizes["N"], sizes["H"], sizes["W"]};
      else shape.push_back(input.may_be_one(axis) && !b.below(3) ? 1 : sizes[name]);
    }
    in.push_back({shape, type_of(input.type, floating), {}});
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
  const OperatorSpec& spec = kOperators[static_cast<size_t>(b.below(kOperatorCount))];
  const std::vector<const Level*>& levels = levels_here();
  setenv("CAPSEDGE_SIMD", levels[static_cast<size_t>(b.below(static_cast<int64_t>(levels.size())))]->name, 1);
  const uint8_t flags = b.next();
  const int32_t floating = flags & 2 ? CAPSEDGE_KERNEL_FLOAT16 : CAPSEDGE_KERNEL_FLOAT;
  const int mode = flags & 4 ? 1 : 0;
  const int32_t threads = flags & 8 && flags & 16 && flags & 32 ? 2 : 1;

  const RandomAttributes random(spec, b);
  const List& attributes = random.list();
  std::vector<Given> in = inputs_of(spec, random, b, floating);
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
  if (capsedge_kernel_create(spec.name, attributes.data(), static_cast<int32_t>(attributes.size()), &kernel, error, sizeof error) != 0) return 0;
  std::vector<Shape> wanted;
  try {
    wanted = make_operator(spec.name, Listed(attributes), choose_level())->outputs(shapes);
  } catch (const std::exception&) {
    capsedge_kernel_destroy(kernel);
    return 0;
  }
  int64_t padded = 1;  // QuantizedConv makes a copy of the padded image
  for (size_t k = 0; k < 4; ++k) padded += std::min<int64_t>(std::abs(random.integer("pads", k, 0)), 1'000'000'000);
  bool small = padded < 64;
  for (const Shape& shape : wanted) small = small && elements(shape) <= kMost;
  if (small) {
    run_twice(kernel, in, wanted, b, mode, threads);
  }
  capsedge_kernel_destroy(kernel);
  return 0;
}
