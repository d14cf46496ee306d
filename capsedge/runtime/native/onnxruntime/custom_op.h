// What the operators' kernels for the CPU and for CUDA share: how a node is described to ONNX Runtime, its attributes, and
// the tensors of one run.
#pragma once

#include <string>
#include <vector>

#include "call.h"
#include "operators/attributes.h"

namespace capsedge::ort {

// The OrtCustomOp that ONNX Runtime sees, followed by our own fields.
struct CustomOp : OrtCustomOp {
  const OrtApi* api;
  const OperatorSpec* spec;
  std::string name;                    // the operator's, or that of its second, third, ... function body
  ONNXTensorElementDataType floating;  // what T is

  ONNXTensorElementDataType type(char letter) const;
};
inline const CustomOp& self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

// All but the provider and the functions of its kernel.
CustomOp describe(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating);

class NodeAttributes : public AttributeSource {
 public:
  NodeAttributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}
  bool find(const char* name, std::vector<int64_t>& values) const override;
  bool find(const char* name, std::vector<float>& values) const override;

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// The inputs of one run; their data is where the provider keeps it.
struct NodeInputs {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  const OrtValue* first = nullptr;
};
// Throws Error for an input that is left out before others.
NodeInputs read_inputs(const OrtApi* api, const OperatorSpec& spec, const OrtKernelContext* context);

// Addresses of outputs of these shapes. Throws Error for one that the node leaves out.
std::vector<void*> make_outputs(const OrtApi* api, const OperatorSpec& spec, OrtKernelContext* context,
                                const std::vector<Shape>& shapes);

}  // namespace capsedge::ort
