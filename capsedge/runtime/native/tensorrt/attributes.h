// Attributes of a plugin: read from TensorRT's fields, checked, and written back to fields.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_node.h"

namespace capsedge {
namespace tensorrt {

// The operator's attributes and our own, in the order in which they are serialized.
const std::vector<AttributeSpec>& attributes_of(OperatorId op);

struct Values {
  std::vector<std::vector<int32_t>> integers;  // by the attribute's index in attributes_of
  std::vector<std::vector<float>> floats;
};

// Empty, or what is wrong with the fields.
std::string read_fields(OperatorId op, const nvinfer1::PluginFieldCollection* fields, Values& values);

// Fields that point into `values`.
std::vector<nvinfer1::PluginField> write_fields(OperatorId op, const Values& values);

// The workspace that getWorkspaceSize requested when an engine was built; the engine stores it with the attributes.
// kNotAsked: not in the fields, or not requested yet.
inline constexpr int64_t kNotAsked = -1;
int64_t read_workspace(const nvinfer1::PluginFieldCollection* fields);
nvinfer1::PluginField workspace_field(const int64_t* bytes);

// Fields without values, as a creator declares them.
std::vector<nvinfer1::PluginField> announce_fields(OperatorId op);

// For the timing cache: two plugins with the same text and shapes run identically.
std::string to_text(OperatorId op, const Values& values);

// The values by name; they must outlive this.
class PluginAttributes final : public CudaAttributes {
 public:
  PluginAttributes(OperatorId op, const Values& values) : op_(op), values_(values) {}
  int32_t integer(const char* name, size_t at = 0) const override;
  float number(const char* name) const override;
  std::vector<float> numbers(const char* name) const override;

 private:
  const OperatorId op_;
  const Values& values_;
};

}  // namespace tensorrt
}  // namespace capsedge
