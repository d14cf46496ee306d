// ONNX Runtime's library, opened at run time.
#pragma once

#include <string>

#include "ort_session_abi.h"

namespace capsedge::libcapsedge {

struct OnnxRuntime {
  const OrtApiBase* base;
  const OrtApi* api;
  OrtEnv* env;
  OrtMemoryInfo* memory;
  std::string path;
  std::string version;
};

// One per process, opened by the first call and never closed, because its threads and statics outlive sessions.
// `named`: the library or its folder, or empty. Throws Failure (CAPSEDGE_ENVIRONMENT) that lists the places searched.
const OnnxRuntime& onnxruntime(const std::string& named);

}  // namespace capsedge::libcapsedge
