// Opens a session from a file or its bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"

namespace capsedge::libcapsedge {

struct OpenOptions {
  int32_t threads = 0;
  capsedge_ops ops = CAPSEDGE_OPS_AUTO;
  std::string onnxruntime, tensorrt;  // their libraries or folders; empty: search
  bool all_outputs = true;
  std::vector<std::string> outputs;
  capsedge_provider provider = CAPSEDGE_PROVIDER_CPU;  // of an ONNX file
  int32_t device = 0;
  size_t contexts = 0;  // of an engine; 0: the default
  capsedge_graphs graphs = CAPSEDGE_GRAPHS_AUTO;
  std::string cuda_kernels;  // file of the GPU's code for ONNX files; empty: search
};

// An ONNX file, or a TensorRT engine: a name that ends in ".engine".
std::unique_ptr<Session> open_file(const std::string& path, const OpenOptions& options);

// An ONNX file in memory; `name` is what errors call it.
std::unique_ptr<Session> open_onnx(std::string_view model, const std::string& name, const OpenOptions& options);

}  // namespace capsedge::libcapsedge
