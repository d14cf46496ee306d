// The attributes of a node as an operator requests them: checked, with the defaults of the operators' table.
#pragma once

#include <limits>
#include <vector>

#include "operators.h"
#include "support/tensor.h"

namespace capsedge {

// Where the attributes of a node are stored; false for an absent one.
class AttributeSource {
 public:
  virtual ~AttributeSource() = default;
  virtual bool find(const char* name, std::vector<int64_t>& values) const = 0;
  virtual bool find(const char* name, std::vector<float>& values) const = 0;
};

// All throw Error for a wrong value, and for an absent attribute without a default.
class Attributes {
 public:
  Attributes(const OperatorSpec& spec, const AttributeSource& source) : spec_(spec), source_(source) {}

  const OperatorSpec& spec() const { return spec_; }
  const AttributeSource& source() const { return source_; }

  int64_t integer(const char* name) const;
  bool flag(const char* name) const;  // 0 or 1
  float number(const char* name) const;
  // As many integers as the default has, none of them negative.
  std::vector<int64_t> integers(const char* name, int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::vector<float> numbers(const char* name) const;  // at least one
  int64_t iterations() const;

 private:
  const OperatorSpec& spec_;
  const AttributeSource& source_;
};

}  // namespace capsedge
