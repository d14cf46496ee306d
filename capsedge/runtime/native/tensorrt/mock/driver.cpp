// A stand-in for TensorRT that drives the plugins through their interface, for tests in Python: a plain C interface
// over creators, plugins, shapes, formats, serialization and enqueue.
#include <NvInferRuntime.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace nvinfer1;

extern "C" {
void setLoggerFinder(ILoggerFinder* finder);
IPluginCreatorInterface* const* getCreators(int32_t& count);
}

namespace {

struct Logger : ILogger {
  std::string last;
  void log(Severity, const char* message) noexcept override { last = message; }
} logger;
struct Finder : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
} finder;

struct Number : IDimensionExpr {
  explicit Number(int64_t v) : value(v) {}
  bool isConstant() const noexcept override { return true; }
  int64_t getConstantValue() const noexcept override { return value; }
  int64_t value;
};
struct Builder : IExprBuilder {
  std::vector<std::unique_ptr<Number>> made;
  const IDimensionExpr* constant(int64_t value) noexcept override {
    made.push_back(std::make_unique<Number>(value));
    return made.back().get();
  }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a,
                                  const IDimensionExpr& b) noexcept override {
    const int64_t x = a.getConstantValue(), y = b.getConstantValue();
    switch (op) {
      case DimensionOperation::kSUM: return constant(x + y);
      case DimensionOperation::kSUB: return constant(x - y);
      case DimensionOperation::kFLOOR_DIV: return constant(x / y);
      default: return constant(-1);
    }
  }
};

IPluginCreatorV3One* creator_of(const char* name) {
  int32_t count = 0;
  IPluginCreatorInterface* const* all = getCreators(count);
  for (int32_t k = 0; k < count; ++k) {
    auto* one = static_cast<IPluginCreatorV3One*>(all[k]);
    if (std::strcmp(one->getPluginName(), name) == 0) return one;
  }
  return nullptr;
}

IPluginV3OneCore* core(IPluginV3* p) {
  return static_cast<IPluginV3OneCore*>(p->getCapabilityInterface(PluginCapabilityType::kCORE));
}
IPluginV3OneBuild* build(IPluginV3* p) {
  return static_cast<IPluginV3OneBuild*>(p->getCapabilityInterface(PluginCapabilityType::kBUILD));
}
IPluginV3OneRuntime* run(IPluginV3* p) {
  return static_cast<IPluginV3OneRuntime*>(p->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

PluginTensorDesc describe(const int64_t* dims, int32_t rank, int32_t type, int32_t format = 0) {
  PluginTensorDesc desc{};
  desc.dims.nbDims = rank;
  for (int32_t k = 0; k < rank; ++k) desc.dims.d[k] = dims[k];
  desc.type = static_cast<DataType>(type);
  desc.format = static_cast<TensorFormat>(format);
  return desc;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

struct mock_field {
  const char* name;
  int32_t type;  // PluginFieldType
  int32_t length;
  const void* data;
};
// Shapes are consecutive in `dims`; `ranks` gives their lengths.
struct mock_tensors {
  int32_t count;
  const int32_t* ranks;
  const int64_t* dims;
  int32_t type;
};

static std::vector<PluginTensorDesc> unpack(const mock_tensors& t) {
  std::vector<PluginTensorDesc> all;
  const int64_t* at = t.dims;
  for (int32_t k = 0; k < t.count; at += t.ranks[k], ++k) all.push_back(describe(at, t.ranks[k], t.type));
  return all;
}

EXPORT const char* mock_error() { return logger.last.c_str(); }

EXPORT const char* mock_field_names(const char* name) {
  static std::string text;
  text.clear();
  const PluginFieldCollection* fields = creator_of(name)->getFieldNames();
  for (int32_t k = 0; k < fields->nbFields; ++k) text += std::string(fields->fields[k].name) + " ";
  return text.c_str();
}

EXPORT IPluginV3* mock_create(const char* name, const mock_field* fields, int32_t count, int32_t phase) {
  setLoggerFinder(&finder);
  logger.last.clear();
  IPluginCreatorV3One* creator = creator_of(name);
  if (!creator) return nullptr;
  std::vector<PluginField> given;
  for (int32_t k = 0; k < count; ++k)
    given.emplace_back(fields[k].name, fields[k].data, static_cast<PluginFieldType>(fields[k].type), fields[k].length);
  const PluginFieldCollection collection{count, given.data()};
  return creator->createPlugin("layer", &collection, static_cast<TensorRTPhase>(phase));
}

// As with an engine file: fields become bytes, the plugin is destroyed, bytes become fields, and a plugin is created
// for run time.
EXPORT IPluginV3* mock_round_trip(IPluginV3* plugin) {
  const std::string name = core(plugin)->getPluginName();
  const PluginFieldCollection* fields = run(plugin)->getFieldsToSerialize();
  struct Stored {
    std::string name;
    PluginFieldType type;
    int32_t length;
    std::vector<char> bytes;
  };
  std::vector<Stored> stored;
  for (int32_t k = 0; k < fields->nbFields; ++k) {
    const PluginField& f = fields->fields[k];
    const char* data = static_cast<const char*>(f.data);
    const int32_t bytes = f.length * (f.type == PluginFieldType::kINT64 ? 8 : 4);
    stored.push_back({f.name, f.type, f.length, std::vector<char>(data, data + bytes)});
  }
  delete plugin;
  std::vector<PluginField> given;
  for (const Stored& s : stored) given.emplace_back(s.name.c_str(), s.bytes.data(), s.type, s.length);
  const PluginFieldCollection collection{static_cast<int32_t>(given.size()), given.data()};
  return creator_of(name.c_str())->createPlugin("layer", &collection, TensorRTPhase::kRUNTIME);
}

EXPORT IPluginV3* mock_clone(IPluginV3* plugin) { return plugin->clone(); }
EXPORT IPluginV3* mock_attach(IPluginV3* plugin) { return run(plugin)->attachToContext(nullptr); }
EXPORT void mock_destroy(IPluginV3* plugin) { delete plugin; }
EXPORT const char* mock_identity(IPluginV3* plugin) {
  static std::string text;
  text = std::string(core(plugin)->getPluginNamespace()) + "::" + core(plugin)->getPluginName() + "/" +
         core(plugin)->getPluginVersion();
  return text.c_str();
}
EXPORT const char* mock_timing_cache_id(IPluginV3* plugin) { return build(plugin)->getTimingCacheID(); }
EXPORT int mock_outputs(IPluginV3* plugin) { return build(plugin)->getNbOutputs(); }

// Output shapes into `dims` (8 each) and `ranks`; types into `types`.
EXPORT int mock_shapes(IPluginV3* plugin, const mock_tensors* in, int64_t* dims, int32_t* ranks, int32_t* types) {
  Builder builder;
  std::vector<DimsExprs> given, made(static_cast<size_t>(build(plugin)->getNbOutputs()));
  std::vector<DataType> input_types, output_types(made.size());
  for (const PluginTensorDesc& desc : unpack(*in)) {
    DimsExprs exprs{};
    exprs.nbDims = desc.dims.nbDims;
    for (int32_t k = 0; k < exprs.nbDims; ++k) exprs.d[k] = builder.constant(desc.dims.d[k]);
    given.push_back(exprs);
    input_types.push_back(desc.type);
  }
  const int32_t inputs = static_cast<int32_t>(given.size()), outputs = static_cast<int32_t>(made.size());
  logger.last.clear();
  if (build(plugin)->getOutputShapes(given.data(), inputs, nullptr, 0, made.data(), outputs, builder)) return 1;
  if (build(plugin)->getOutputDataTypes(output_types.data(), outputs, input_types.data(), inputs)) return 2;
  for (int32_t o = 0; o < outputs; ++o) {
    ranks[o] = made[static_cast<size_t>(o)].nbDims;
    types[o] = static_cast<int32_t>(output_types[static_cast<size_t>(o)]);
    for (int32_t k = 0; k < ranks[o]; ++k)
      dims[8 * o + k] = made[static_cast<size_t>(o)].d[k]->getConstantValue();
  }
  return 0;
}

EXPORT int mock_supports(IPluginV3* plugin, int32_t position, const int32_t* types, const int32_t* formats,
                         int32_t inputs, int32_t outputs) {
  // TensorRT calls this before the later inputs are known.
  std::vector<DynamicPluginTensorDesc> all(static_cast<size_t>(inputs + outputs));
  for (int32_t k = 0; k <= position && k < inputs + outputs; ++k) {
    all[static_cast<size_t>(k)].desc.type = static_cast<DataType>(types[k]);
    all[static_cast<size_t>(k)].desc.format = static_cast<TensorFormat>(formats[k]);
  }
  return build(plugin)->supportsFormatCombination(position, all.data(), inputs, outputs);
}

static std::vector<DynamicPluginTensorDesc> profile(const mock_tensors& low, const mock_tensors& high) {
  std::vector<DynamicPluginTensorDesc> all;
  const std::vector<PluginTensorDesc> least = unpack(low), most = unpack(high);
  for (size_t k = 0; k < most.size(); ++k) all.push_back({most[k], least[k].dims, most[k].dims, most[k].dims});
  return all;
}

static int64_t workspace(IPluginV3* plugin, const std::vector<DynamicPluginTensorDesc>& given) {
  const std::vector<DynamicPluginTensorDesc> made(static_cast<size_t>(build(plugin)->getNbOutputs()));
  logger.last.clear();
  return static_cast<int64_t>(build(plugin)->getWorkspaceSize(given.data(), static_cast<int32_t>(given.size()), made.data(),
                                                              static_cast<int32_t>(made.size())));
}

// Bytes of workspace for these shapes.
EXPORT int64_t mock_workspace(IPluginV3* plugin, const mock_tensors* in) { return workspace(plugin, profile(*in, *in)); }

// Bytes of workspace for the shapes from the smallest to the largest, or -1 if the plugin refuses them.
EXPORT int64_t mock_configure_profile(IPluginV3* plugin, const mock_tensors* low, const mock_tensors* high) {
  const auto given = profile(*low, *high);
  const std::vector<DynamicPluginTensorDesc> made(static_cast<size_t>(build(plugin)->getNbOutputs()));
  logger.last.clear();
  if (build(plugin)->configurePlugin(given.data(), static_cast<int32_t>(given.size()), made.data(),
                                     static_cast<int32_t>(made.size())))
    return -1;
  return workspace(plugin, given);
}
EXPORT int64_t mock_configure(IPluginV3* plugin, const mock_tensors* in) { return mock_configure_profile(plugin, in, in); }

EXPORT int mock_enqueue(IPluginV3* plugin, const mock_tensors* in, const void* const* inputs, void* const* outputs,
                        void* workspace) {
  const std::vector<PluginTensorDesc> given = unpack(*in);
  std::vector<PluginTensorDesc> made(static_cast<size_t>(build(plugin)->getNbOutputs()));
  logger.last.clear();
  if (run(plugin)->onShapeChange(given.data(), static_cast<int32_t>(given.size()), made.data(),
                                 static_cast<int32_t>(made.size())))
    return 1;
  return run(plugin)->enqueue(given.data(), made.data(), inputs, outputs, workspace, nullptr);
}
