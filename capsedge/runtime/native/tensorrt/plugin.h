// The operators as TensorRT plugins over the CUDA kernels: one class, whose `OperatorId` selects the operator.
#pragma once

#include <NvInferRuntime.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attributes.h"
#include "cuda_node.h"

namespace capsedge {
namespace tensorrt {

// The most bytes that getWorkspaceSize has requested for a plugin and all its clones, of which each profile may have
// one.
using Workspace = std::atomic<int64_t>;

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(OperatorId op, const Values& values, std::shared_ptr<Workspace> workspace);

  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // Core
  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

  // Build
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* types, int32_t outputs, const nvinfer1::DataType* input_types,
                             int32_t inputs) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* in, int32_t inputs, const nvinfer1::DimsExprs* shape_inputs,
                          int32_t shape_input_count, nvinfer1::DimsExprs* out, int32_t outputs,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* all, int32_t inputs,
                                 int32_t outputs) noexcept override;
  int32_t getNbOutputs() const noexcept override;
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) const noexcept override;
  const char* getTimingCacheID() noexcept override;
  const char* getMetadataString() noexcept override;

  // Run time
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t inputs, const nvinfer1::PluginTensorDesc* out,
                        int32_t outputs) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in_desc, const nvinfer1::PluginTensorDesc* out_desc,
                  const void* const* in, void* const* out, void* workspace, cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  // Empty, or an error if the operator does not have as many.
  std::string check_count(int32_t inputs) const;
  // The node for these shapes; empty, or what is wrong with them.
  std::string prepare(const nvinfer1::Dims* dims, int32_t inputs, nvinfer1::DataType type, CudaCall& call) const;
  // Also the bytes of its workspace.
  std::string workspace(const nvinfer1::Dims* dims, int32_t inputs, nvinfer1::DataType type, int64_t& bytes) const;
  // A dimension according to the table's shapes; null, with the reason in `why`, if an input has another rank.
  const nvinfer1::IDimensionExpr* dimension(std::string_view name, const nvinfer1::DimsExprs* in,
                                            nvinfer1::IExprBuilder& builder, std::string& why) const;
  int32_t refuse(const std::string& why) const noexcept;
  std::pair<int64_t, int64_t> children_of(const nvinfer1::DynamicPluginTensorDesc* in) const;
  std::vector<nvinfer1::Dims> largest(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs, int64_t children) const;

  const OperatorId op_;
  const Values values_;
  const CudaNode node_;
  const std::string text_;
  const std::shared_ptr<Workspace> workspace_;
  int64_t written_workspace_ = kNotAsked;  // the values that fields point to
  // How many inputs the node has, which determines the optional ones: enqueue does not get it, but onShapeChange does.
  // 0: not known yet.
  int32_t inputs_ = 0;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(OperatorId op);
  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override;
  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

 private:
  const OperatorId op_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_{};
};

// All creators; they live as long as the library.
const std::vector<nvinfer1::IPluginCreatorInterface*>& creators();

// Writes to TensorRT's logger, if one was given.
void log_error(const std::string& message) noexcept;

}  // namespace tensorrt
}  // namespace capsedge
