// A stand-in for libnvinfer of which there is only the registry: what register.cpp has put into it.
#include <NvInferRuntime.h>

#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

struct Registry : IPluginRegistry {
  std::vector<std::string> names;
  bool registerCreator(IPluginCreatorInterface& creator, const char* space) noexcept override {
    auto& one = static_cast<IPluginCreatorV3One&>(creator);
    names.push_back(std::string(space) + "::" + one.getPluginName() + "/" + one.getPluginVersion());
    return true;
  }
  PluginLibraryHandle loadLibrary(const char*) noexcept override { return nullptr; }
  IPluginCreatorInterface* getCreator(const char*, const char*, const char*) noexcept override { return nullptr; }
};
Registry& registry() {
  static Registry made;
  return made;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT IPluginRegistry* getPluginRegistry() noexcept { return &registry(); }

EXPORT const char* mock_registered() {
  static std::string text;
  text.clear();
  for (const std::string& name : registry().names) text += name + " ";
  return text.c_str();
}
