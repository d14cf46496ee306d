// The variant that registers its plugins when it is loaded (LD_PRELOAD, dlopen), for programs that do not call
// IPluginRegistry::loadLibrary: Triton, ONNX Runtime's TensorRT provider, trtexec --staticPlugins. It takes the registry
// of the TensorRT of its major version, which it loads if the process has not.
#include <dlfcn.h>

#include <cstdio>

#include "plugin.h"

namespace {

#define CAPSEDGE_TEXT_(x) #x
#define CAPSEDGE_TEXT(x) CAPSEDGE_TEXT_(x)
constexpr char kTensorRtFile[] = "libnvinfer.so." CAPSEDGE_TEXT(NV_TENSORRT_MAJOR);

void* find_registry() {
  void* const library = dlopen(kTensorRtFile, RTLD_NOW | RTLD_GLOBAL);
  return library ? dlsym(library, "getPluginRegistry") : nullptr;
}

struct Registration {
  Registration() {
    const auto registry = reinterpret_cast<decltype(&getPluginRegistry)>(find_registry());
    if (!registry) {
      std::fprintf(stderr, "capsedge: no plugins are registered, because %s was not found\n", kTensorRtFile);
      return;
    }
    for (nvinfer1::IPluginCreatorInterface* creator : capsedge::tensorrt::creators())
      registry()->registerCreator(*creator, capsedge::kDomain);
  }
} const registration;

}  // namespace
