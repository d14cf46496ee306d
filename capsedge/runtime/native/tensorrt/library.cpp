// The library's entry points: creators, and the symbols that TensorRT looks up when it loads a plugin library.
// libnvinfer is not linked, because all of its interfaces are in its headers.
#include "plugin.h"

namespace capsedge {
namespace tensorrt {

using namespace nvinfer1;

namespace {
std::atomic<ILoggerFinder*> finder{nullptr};
}

void log_error(const std::string& message) noexcept {
  try {
    ILoggerFinder* found = finder.load();
    ILogger* logger = found ? found->findLogger() : nullptr;
    if (logger) logger->log(ILogger::Severity::kERROR, ("capsedge: " + message).c_str());
  } catch (...) {
  }
}

Creator::Creator(OperatorId op) : op_(op), fields_(announce_fields(op)) {
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

IPluginV3* Creator::createPlugin(const char*, const PluginFieldCollection* fields, TensorRTPhase) noexcept {
  try {
    Values values;
    const std::string why = read_fields(op_, fields, values);
    if (why.empty()) return new Plugin(op_, values, std::make_shared<Workspace>(read_workspace(fields)));
    log_error(std::string(spec_of(op_).name) + ": " + why);
  } catch (...) {
  }
  return nullptr;
}

const PluginFieldCollection* Creator::getFieldNames() noexcept { return &collection_; }
const char* Creator::getPluginName() const noexcept { return spec_of(op_).name; }
const char* Creator::getPluginVersion() const noexcept { return kPluginVersion; }
const char* Creator::getPluginNamespace() const noexcept { return kDomain; }

const std::vector<IPluginCreatorInterface*>& creators() {
  static const std::vector<IPluginCreatorInterface*> all = [] {
    std::vector<IPluginCreatorInterface*> made;
    for (const OperatorSpec& spec : kOperators)
      if (spec.plugin) made.push_back(new Creator(id_of(spec)));  // they live as long as the process
    return made;
  }();
  return all;
}

}  // namespace tensorrt
}  // namespace capsedge

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  capsedge::tensorrt::finder.store(finder);
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    int32_t& count) {
  const auto& all = capsedge::tensorrt::creators();
  count = static_cast<int32_t>(all.size());
  return all.data();
}
