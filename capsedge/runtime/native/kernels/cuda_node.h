// A node as the CUDA kernels take it, made from its attributes and the shapes of its inputs: for TensorRT's plugins and
// for the operators of ONNX Runtime. What is wrong is said in strings, because TensorRT takes no exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capsedge_cuda.h"
#include "input_shapes.h"

namespace capsedge {

// Attributes of a node as a runtime gives them: the table's types and defaults, each checked on its own.
class CudaAttributes {
 public:
  virtual ~CudaAttributes() = default;
  virtual int32_t integer(const char* name, size_t at = 0) const = 0;
  virtual float number(const char* name) const = 0;
  virtual std::vector<float> numbers(const char* name) const = 0;
};

// Whether the CUDA kernels have an operator; a quantized one is computed by the kernels of the one that it quantizes.
bool has_cuda_kernel(const OperatorSpec& spec);

// What is wrong with attributes that are right one by one; or empty.
std::string wrong_attributes(const OperatorSpec& spec, const CudaAttributes& attributes);

// A node with the shapes of one run, but without addresses.
struct CudaCall {
  capsedge_cuda_routing layer{};          // of a routing operator
  int64_t outer = 1, size = 1, inner = 1;  // of Squash: the pose lies along `size`
};

// Memory of the device that lasts until the work is done.
struct CudaScratch {
  void* data = nullptr;
  int64_t bytes = 0;
};

// All functions return empty, or what is wrong.
class CudaNode {
 public:
  // Args: attributes without faults; the multiprocessors to plan for, 0 for those of the GPU of each run.
  CudaNode(const OperatorSpec& spec, const CudaAttributes& attributes, int32_t multiprocessors);

  // `type` is CAPSEDGE_CUDA_FLOAT or CAPSEDGE_CUDA_FLOAT16.
  std::string prepare(const ShapeView* inputs, size_t count, int32_t type, CudaCall& call) const;

  // Bytes of scratch memory that suffice for this call and for every smaller batch.
  std::string workspace(const CudaCall& call, int64_t& bytes) const;

  // Queues the work on a stream. All addresses are on the device, those of `in` in the order of the table.
  std::string launch(CudaCall call, const void* const* in, size_t count, void* const* out, CudaScratch scratch,
                     void* stream) const;

 private:
  std::string set_squash(ShapeView x, CudaCall& call) const;
  void set_capsules(const ShapeView* inputs, size_t count, capsedge_cuda_routing& layer) const;
  void set_votes(ShapeView votes, capsedge_cuda_routing& layer) const;
  std::string set_windows(const ShapeView* inputs, capsedge_cuda_routing& layer) const;
  std::string check_parent(ShapeView parent, capsedge_cuda_routing& layer) const;

  const OperatorSpec& spec_;
  const OperatorId base_;  // of a quantized operator, the one that it quantizes
  const InputShapes input_shapes_;
  capsedge_cuda_routing attributes_{};  // what follows from attributes
  int32_t axis_ = 0;                    // of Squash
  bool matrix_pose_ = true;
};

}  // namespace capsedge
