// Input and output tensors, and their shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "error.h"
#include "simd/level.h"

namespace capsedge {

using Shape = std::vector<int64_t>;

enum class Type { kFloat, kFloat16, kInt8, kUint8, kInt32 };

// Not owned, contiguous.
struct Tensor {
  const void* data;
  Shape shape;
  Type type;
  // For an int8 routing weight: the factors of its columns, [parents][columns].
  const float* scale = nullptr;
};
struct Output {
  void* data;
  Shape shape;
  Type type;
};

// INT64_MAX if the product overflows.
inline int64_t elements(const Shape& shape) {
  int64_t count = 1;
  bool fits = true;
  for (int64_t d : shape) {
    if (d == 0) return 0;
    fits = fits && !__builtin_mul_overflow(count, d, &count);
  }
  return fits ? count : INT64_MAX;
}

inline std::string to_text(const std::string& text) { return text; }
inline std::string to_text(int64_t number) { return std::to_string(number); }
inline std::string to_text(float number) { return std::to_string(number); }
inline std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Throws Error "<op>: <parts>". The text is built only when it throws, because shapes are checked in every run.
template <typename... Parts>
void expect(bool condition, const char* op, const Parts&... parts) {
  if (!condition) throw Error((std::string(op) + ": " + ... + to_text(parts)));
}

// Throws Error "<op>: input '<name>' is <type>: wanted <type>".
void expect_type(const char* op, const char* name, const Tensor& tensor, Type wanted);

// (in - kernel) / stride + 1 of both axes.
struct Grid {
  int64_t height, width;
};
Grid output_grid(const char* op, const Shape& pose, int64_t kernel_height, int64_t kernel_width, const Shape& strides);

// Side of the square matrix formed by a pose of `size` elements.
int64_t matrix_side(const char* op, int64_t size);

// Uninitialised memory for floats, aligned to 64 bytes. Freed memory is kept for the thread's next buffer of similar
// size: the C library would return it to the system after a run and request it again, page by page, in the next, which
// takes longer than routing one image.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t floats);
  ~Buffer();
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_), room_(other.room_) {
    other.data_ = nullptr, other.size_ = other.room_ = 0;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
    return *this;
  }
  float* data() { return data_; }
  const float* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
  int64_t room_ = 0;  // bytes, at least those of size_
};

// At least `floats` floats that belong to the calling thread until its next call.
float* thread_scratch(int64_t floats);

// An input as floats: itself, or a widened copy.
class Floats {
 public:
  Floats(const Tensor& tensor, const Level& level, int64_t slack = 0);
  const float* data() const { return data_; }

 private:
  Buffer copy_;
  const float* data_;
};

// An output as floats: itself, or a copy that store() narrows into it.
class FloatOutput {
 public:
  FloatOutput(const Output& output, const Level& level);
  float* data() { return data_; }
  void store() const;

 private:
  const Output& output_;
  const Level& level_;
  Buffer copy_;
  float* data_;
};

}  // namespace capsedge
