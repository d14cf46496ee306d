// Models in ONNX Runtime, on the CPU; onnxruntime_cuda.cpp has those on a GPU.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend.h"
#include "onnxruntime_session.h"

namespace capsedge::libcapsedge {

class OnnxRuntimeBackend : public Backend {
 public:
  OnnxRuntimeBackend(std::string_view model, const std::string& name, const OpenOnnx& how);

  const char* name() const override { return "onnxruntime"; }
  const std::string& version() const override { return runtime_.version; }
  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }
  void run(const Value* inputs, size_t input_count, Value* outputs, size_t output_count) const override;

 protected:
  // A value of ONNX Runtime over memory of the caller.
  void make(const Value& value, const OrtMemoryInfo* memory, OrtValue*& made) const;

  // Type, shape and bytes of a value, for an output whose shape was not known before. Throws Failure (CAPSEDGE_USAGE)
  // where it has no room, CAPSEDGE_UNSUPPORTED for a type that cannot be returned.
  void shape(OrtValue* value, Value& to) const;

  // Throws what a failed run means.
  [[noreturn]] void fail(const std::string& message) const;

  const OnnxRuntime& runtime_;
  const OrtApi* const api_;
  const std::string name_;
  Owned<OrtSession> session_;
  const Owned<OrtRunOptions> run_options_;

 private:
  void read_ports(ort::SessionGetInputCountType count_of, ort::SessionGetInputTypeInfoType info_of,
                  ort::SessionGetInputNameType name_of, std::vector<Port>& ports) const;

  const bool on_gpu_;
  std::vector<Port> inputs_, outputs_;
};

std::unique_ptr<Backend> open_onnxruntime_cuda(std::string_view model, const std::string& name, const OpenOnnx& how);

}  // namespace capsedge::libcapsedge
