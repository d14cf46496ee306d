// Sessions of ONNX Runtime: their options, the errors if one is refused, and what several kinds of them share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend.h"
#include "call.h"
#include "onnxruntime_library.h"

namespace capsedge::libcapsedge {

template <typename T>
struct Release {
  void (*release)(T*) = nullptr;
  void operator()(T* value) const { release(value); }
};
template <typename T>
using Owned = std::unique_ptr<T, Release<T>>;

// What a function of ONNX Runtime makes. Throws Error with ONNX Runtime's message.
template <typename T, typename F>
Owned<T> owned(const OrtApi* api, void (*release)(T*), F&& make) {
  T* made = nullptr;
  ort::check(api, make(&made));
  return Owned<T>(made, {release});
}

// A session with the operators that it needs; with CUDA graphs if `graphs` is set. Throws Error with ONNX Runtime's
// message for a model that it refuses; Failure (CAPSEDGE_ENVIRONMENT) for a provider or operators.
Owned<OrtSession> make_session(const OnnxRuntime& runtime, std::string_view model, const OpenOnnx& how, bool graphs = false);

// The same without graphs, and with what a refusal means as a Failure.
Owned<OrtSession> open_session(const OnnxRuntime& runtime, std::string_view model, const std::string& name, const OpenOnnx& how);

Owned<OrtRunOptions> run_options(const OrtApi* api);

// The first line of ONNX Runtime's message.
std::string first_line(const std::string& message);

// Whether the message says that memory of the GPU ran out.
bool is_short_of_memory(const std::string& message);

// Refuses a run on a GPU without the memory for it, in ONNX Runtime's words. Throws Failure (CAPSEDGE_ENVIRONMENT).
[[noreturn]] void fail_without_memory(const std::string& what, const std::string& message);

// Refuses a GPU that ONNX Runtime or CUDA cannot use. Throws Failure (CAPSEDGE_ENVIRONMENT).
void check_gpu(const OnnxRuntime& runtime, int32_t gpu);

}  // namespace capsedge::libcapsedge
