// The variant that registers its plugins when it is loaded (LD_PRELOAD, dlopen), for programs that do not call
// IPluginRegistry::loadLibrary: Triton, ONNX Runtime's TensorRT provider, trtexec --staticPlugins. It calls TensorRT's
// registry, so it is linked to libnvinfer and tied to one major version of it.
#include "plugin.h"

namespace {

struct Registration {
  Registration() {
    for (nvinfer1::IPluginCreatorInterface* creator : capsedge::tensorrt::creators())
      getPluginRegistry()->registerCreator(*creator, capsedge::kDomain);
  }
} const registration;

}  // namespace
