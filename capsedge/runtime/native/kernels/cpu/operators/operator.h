// The operators, independent of their callers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attributes.h"
#include "input_shapes.h"
#include "output_shapes.h"
#include "support/parallel.h"
#include "support/tensor.h"

namespace capsedge {

// A value derived from an input: by `constant` if the input is an initializer, otherwise by `make` for this run only,
// kept in `own`.
template <typename T, typename Make>
const T& made_once(const std::optional<T>& constant, std::optional<T>& own, Make&& make) {
  return constant ? *constant : own.emplace(make());
}

class Operator {
 public:
  Operator(const Attributes& attributes, const Level& level)
      : spec_(attributes.spec()), level_(level), input_shapes_(spec_), output_shapes_(attributes) {}
  virtual ~Operator() = default;

  // Checks the inputs' number and shapes; returns the outputs' shapes.
  std::vector<Shape> outputs(const std::vector<Shape>& inputs) const;

  // Input number `index` is the same in every run. Called before run, not during one.
  void constant(size_t index, const Tensor& tensor);

  // May be called from several threads at once. Outputs do not overlap inputs.
  virtual void run(const std::vector<Tensor>& inputs, const std::vector<Output>& outputs,
                   const Threads& threads) const = 0;

  const Level& level() const { return level_; }

 protected:
  // Called with a tensor whose rank is that of the table.
  virtual void keep(size_t /*index*/, const Tensor& /*tensor*/) {}
  // What the table does not say of the shapes of inputs, which agree with it; omitted optional inputs are missing at the
  // end. Throws Error.
  virtual void check(const std::vector<Shape>& /*inputs*/) const {}
  const char* name() const { return spec_.name; }

  const OperatorSpec& spec_;
  const Level& level_;

 private:
  const InputShapes input_shapes_;
  const OutputShapes output_shapes_;
};

// Throws Error for an unknown operator or a wrong attribute.
std::unique_ptr<Operator> make_operator(const std::string& name, const AttributeSource& attributes,
                                        const Level& level);

}  // namespace capsedge

#include "generated/makers.h"
