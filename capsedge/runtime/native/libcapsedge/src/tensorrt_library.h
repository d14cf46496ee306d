// TensorRT's library, opened at run time; only its headers are needed to compile this library.
#pragma once

#include <NvInferRuntime.h>

#include <array>
#include <mutex>
#include <string>

namespace capsedge::libcapsedge {

// Keeps TensorRT's warnings and errors for our statuses instead of printing them. TensorRT keeps the first logger of a
// process for all, so each library has one.
class TensorRtLogger : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override;
  // TensorRT's last message, used as the reason in a status; returned only once.
  std::string words();
  // Discards earlier messages.
  void clear();

 private:
  std::mutex mutex_;
  std::array<std::string, 2> errors_;
  std::string warning_;
};

struct TensorRt {
  TensorRtLogger logger;
  std::string path;
  std::string version;  // "10.3.0.26"
  std::string product;  // "TensorRT 10.3.0.26", "TensorRT-RTX 1.7.1.116"

  nvinfer1::IRuntime* create_runtime();  // the caller deletes it; null if TensorRT refuses

  void* (*create)(void* logger, int32_t version) noexcept;
};

// TensorRT, or TensorRT-RTX for portable engines; each one for the whole process, opened by the first call and never
// closed. `named`: the library or its folder, or empty. Throws Failure (CAPSEDGE_ENVIRONMENT) that says what was searched.
TensorRt& tensorrt(bool portable, const std::string& named);

// capsedge's plugin library: the one that CAPSEDGE_TENSORRT_PLUGIN names, else the one installed with this library;
// empty: there is none. Throws Failure (CAPSEDGE_ENVIRONMENT) where the variable does not name a file.
std::string find_plugin();

// Loads the plugins into a registry. Throws Failure (CAPSEDGE_ARTEFACT) if TensorRT does not accept the library.
void load_plugin(nvinfer1::IPluginRegistry& registry, const std::string& library, TensorRtLogger& logger);

}  // namespace capsedge::libcapsedge
