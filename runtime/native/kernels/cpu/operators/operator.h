// The operators, apart from whoever calls them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/parallel.h"
#include "support/tensor.h"

namespace capsedge {

// Attributes of a node. An absent attribute gives its default; one without a default throws Error.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual bool find(const char* name, std::vector<int64_t>& values) const = 0;
  virtual bool find(const char* name, std::vector<float>& values) const = 0;

  int64_t integer(const char* op, const char* name, int64_t otherwise) const;
  bool flag(const char* op, const char* name, bool otherwise) const;
  float positive(const char* op, const char* name, float otherwise) const;
  float number(const char* op, const char* name) const;
  Shape strides(const char* op) const;
};

// What is made of an input: by `constant` if it is an initializer, else by `make` for this run only, kept in `own`.
template <typename T, typename Make>
const T& made_once(const std::optional<T>& constant, std::optional<T>& own, Make&& make) {
  return constant ? *constant : own.emplace(make());
}

class Operator {
 public:
  explicit Operator(const Level& level) : level_(level) {}
  virtual ~Operator() = default;

  // Checks the inputs' shapes; the outputs' shapes.
  virtual std::vector<Shape> outputs(const std::vector<Shape>& inputs) const = 0;

  // Input number `index` is the same in every run. Called before run, not during one.
  virtual void constant(size_t index, const Tensor& tensor) = 0;

  // May be called from several threads at once. Outputs do not overlap inputs.
  virtual void run(const std::vector<Tensor>& inputs, const std::vector<Output>& outputs,
                   const Threads& threads) const = 0;

  const Level& level() const { return level_; }

 protected:
  const Level& level_;
};

// Throws Error for an unknown operator or a wrong attribute.
std::unique_ptr<Operator> make_operator(const std::string& name, const Attributes& attributes, const Level& level);

std::unique_ptr<Operator> make_squash(const Attributes&, const Level&);
std::unique_ptr<Operator> make_dynamic_routing(const Attributes&, const Level&);
std::unique_ptr<Operator> make_em_routing(const Attributes&, const Level&);
std::unique_ptr<Operator> make_attention_routing(const Attributes&, const Level&);
std::unique_ptr<Operator> make_uniform_routing(const Attributes&, const Level&);
std::unique_ptr<Operator> make_pose_normalization(const Attributes&, const Level&);
std::unique_ptr<Operator> make_quantized_routing(const std::string& name, const Attributes&, const Level&);
std::unique_ptr<Operator> make_quantized_conv(const Attributes&, const Level&);

}  // namespace capsedge
