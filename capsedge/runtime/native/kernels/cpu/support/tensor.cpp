#include "tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace capsedge {

void expect_type(const char* op, const char* name, const Tensor& tensor, Type wanted) {
  constexpr const char* kNames[] = {"float", "float16", "int8", "uint8", "int32"};
  expect(tensor.type == wanted, op, "input '", name, "' is ", kNames[static_cast<int>(tensor.type)], ": wanted ",
         kNames[static_cast<int>(wanted)]);
}

Grid output_grid(const char* op, const Shape& pose, int64_t kernel_height, int64_t kernel_width,
                 const Shape& strides) {
  expect(pose[1] >= kernel_height && pose[2] >= kernel_width, op, "the window of ", kernel_height, "x", kernel_width,
         " is larger than the grid of ", pose[1], "x", pose[2]);
  return {(pose[1] - kernel_height) / strides[0] + 1, (pose[2] - kernel_width) / strides[1] + 1};
}

int64_t matrix_side(const char* op, int64_t size) {
  const int64_t side = std::llround(std::sqrt(static_cast<double>(size)));
  expect(side * side == size, op, "pose size ", size, " is not a square number");
  return side;
}

namespace {

constexpr std::align_val_t kAlign{64};

// Memory that buffers of one thread have returned: a few blocks, none larger than a run's partial sums.
class Spare {
 public:
  static constexpr int64_t kLargest = 16 << 20;
#ifdef __SANITIZE_ADDRESS__
  static constexpr int kBlocks = 0;  // so that the sanitizer sees every use after release
#else
  static constexpr int kBlocks = 6;
#endif

  ~Spare() {
    gone = true;
    for (int i = 0; i < count_; ++i) ::operator delete(blocks_[i].data, kAlign);
  }

  // A block of at least `bytes`, but not much more; null if there is none.
  void* take(int64_t bytes, int64_t& room) {
    for (int i = count_ - 1; i >= 0; --i) {
      const Block block = blocks_[i];
      if (block.room < bytes || block.room / 2 > bytes) continue;
      remove(i);
      room = block.room;
      return block.data;
    }
    return nullptr;
  }

  // False if the caller keeps it.
  bool give(void* data, int64_t room) {
    if (kBlocks == 0 || room > kLargest) return false;
    if (count_ == kBlocks) {
      ::operator delete(blocks_[0].data, kAlign);
      remove(0);
    }
    blocks_[count_++] = {data, room};
    return true;
  }

  // Buffers may outlive a thread's own objects.
  static thread_local bool gone;

 private:
  struct Block {
    void* data;
    int64_t room;
  };
  void remove(int i) { std::copy(blocks_ + i + 1, blocks_ + count_--, blocks_ + i); }

  Block blocks_[kBlocks + 1];
  int count_ = 0;
};
thread_local bool Spare::gone = false;

Spare* spare() {
  thread_local Spare mine;
  return Spare::gone ? nullptr : &mine;
}

}  // namespace

Buffer::Buffer(int64_t floats) : size_(floats), room_((floats ? floats : 1) * static_cast<int64_t>(sizeof(float))) {
  void* data = nullptr;
  if (Spare* here = spare()) data = here->take(room_, room_);
  if (data == nullptr) data = ::operator new(static_cast<size_t>(room_), kAlign);
  data_ = static_cast<float*>(data);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  Spare* here = spare();
  if (here == nullptr || !here->give(data_, room_)) ::operator delete(data_, kAlign);
}

float* thread_scratch(int64_t floats) {
  thread_local Buffer buffer;
  if (buffer.size() < floats) {
    buffer = Buffer();  // not both at once
    buffer = Buffer(floats);
  }
  return buffer.data();
}

Floats::Floats(const Tensor& tensor, const Level& level, int64_t slack) {
  const int64_t count = elements(tensor.shape);
  if (tensor.type == Type::kFloat && slack == 0) {
    data_ = static_cast<const float*>(tensor.data);
    return;
  }
  if (tensor.type != Type::kFloat && tensor.type != Type::kFloat16)
    throw Error("an input is neither float nor float16");
  copy_ = Buffer(count + slack);
  if (tensor.type == Type::kFloat) {
    const float* from = static_cast<const float*>(tensor.data);
    std::copy(from, from + count, copy_.data());
  } else {
    level.widen(static_cast<const uint16_t*>(tensor.data), copy_.data(), count);
  }
  std::fill(copy_.data() + count, copy_.data() + count + slack, 0.0f);
  data_ = copy_.data();
}

FloatOutput::FloatOutput(const Output& output, const Level& level) : output_(output), level_(level) {
  if (output.type == Type::kFloat) {
    data_ = static_cast<float*>(output.data);
  } else {
    copy_ = Buffer(elements(output.shape));
    data_ = copy_.data();
  }
}

void FloatOutput::store() const {
  if (output_.type == Type::kFloat16)
    level_.narrow(copy_.data(), static_cast<uint16_t*>(output_.data), elements(output_.shape));
}

}  // namespace capsedge
