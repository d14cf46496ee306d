// Attributes of a plugin: from TensorRT's fields, checked, and back into fields.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "operators.h"

namespace capsedge {
namespace tensorrt {

// Those that have a plugin.
enum class Operator { kSquash, kDynamic, kVotes, kEm, kAttention, kSelfAttention };
inline constexpr Operator kAll[] = {Operator::kSquash, Operator::kDynamic,   Operator::kVotes,
                                    Operator::kEm,     Operator::kAttention, Operator::kSelfAttention};

const OperatorSpec& spec_of(Operator op);

// Those of the operator and our own, in the order in which they are serialized.
const std::vector<AttributeSpec>& attributes_of(Operator op);

struct Values {
  std::vector<std::vector<int32_t>> integers;  // by the attribute's place in attributes_of
  std::vector<std::vector<float>> floats;
};

// Empty, or what is wrong with the fields.
std::string read_fields(Operator op, const nvinfer1::PluginFieldCollection* fields, Values& values);

// Fields that point into `values`.
std::vector<nvinfer1::PluginField> write_fields(Operator op, const Values& values);

// What getWorkspaceSize asked for when an engine was built, which keeps it beside the attributes. kNotAsked: not in the
// fields, or nobody has asked yet.
inline constexpr int64_t kNotAsked = -1;
int64_t read_workspace(const nvinfer1::PluginFieldCollection* fields);
nvinfer1::PluginField workspace_field(const int64_t* bytes);

// Fields without values, as a creator announces them.
std::vector<nvinfer1::PluginField> announce_fields(Operator op);

// For the timing cache: two plugins with the same text and shapes run alike.
std::string to_text(Operator op, const Values& values);

int32_t integer(Operator op, const Values& values, const char* name, size_t at = 0);
float number(Operator op, const Values& values, const char* name);
const std::vector<float>& numbers(Operator op, const Values& values, const char* name);

}  // namespace tensorrt
}  // namespace capsedge
