#include "tensorrt_engine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <iterator>

#include "failure.h"

namespace capsedge::libcapsedge {

namespace {

int32_t type_of(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT: return CAPSEDGE_FLOAT32;
    case nvinfer1::DataType::kHALF: return CAPSEDGE_FLOAT16;
    case nvinfer1::DataType::kINT8: return CAPSEDGE_INT8;
    case nvinfer1::DataType::kUINT8: return CAPSEDGE_UINT8;
    case nvinfer1::DataType::kINT32: return CAPSEDGE_INT32;
    case nvinfer1::DataType::kINT64: return CAPSEDGE_INT64;
    case nvinfer1::DataType::kBOOL: return CAPSEDGE_BOOL;
    default: return CAPSEDGE_OTHER;
  }
}

std::vector<int64_t> shape_of(const nvinfer1::Dims& dims) {
  return std::vector<int64_t>(dims.d, dims.d + std::max(0, dims.nbDims));
}

// Of an input.
nvinfer1::Dims dims_for(const Port& port, const Sizes& sizes) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<int32_t>(port.shape.size());
  for (size_t i = 0; i < port.shape.size(); ++i)
    dims.d[i] = port.shape[i] >= 0 ? port.shape[i] : i == 0 ? sizes.batch : sizes.length;
  return dims;
}

}  // namespace

size_t bytes_of(const Port& port, const nvinfer1::Dims& dims) {
  size_t bytes = element_bytes(port.type);
  for (int32_t i = 0; i < dims.nbDims; ++i) bytes *= static_cast<size_t>(dims.d[i]);
  return bytes;
}

Buffer::Buffer(const Cuda& cuda, size_t bytes) : cuda_(cuda), bytes_(bytes), device_(cuda.allocate(bytes)) {
  try {
    host_ = cuda.allocate_host(bytes);
  } catch (...) {
    cuda.free(device_);
    throw;
  }
}

Buffer::~Buffer() {
  cuda_.free(device_);
  cuda_.free_host(host_);
}

std::string TensorRtEngine::check(const EngineMetadata& engine_metadata) const {
  const std::string plugin = engine_metadata.plugin_sha256.empty() ? "" : find_plugin();
  check_engine_metadata(path_, engine_metadata, this_machine(), plugin);
  return plugin;
}

void TensorRtEngine::load(std::string_view engine, const std::string& plugin, const std::vector<std::string>& keep) {
  trt_.logger.clear();
  runtime_.reset(trt_.create_runtime());
  if (!runtime_)
    throw Failure(CAPSEDGE_ENVIRONMENT, trt_.product + " does not start.", trt_.logger.words(),
                  "Check `nvidia-smi` (on a Jetson: `tegrastats`).");
  if (!plugin.empty()) load_plugin(runtime_->getPluginRegistry(), plugin, trt_.logger);
  engine_.reset(runtime_->deserializeCudaEngine(engine.data(), engine.size()));
  if (!engine_)
    throw Failure(CAPSEDGE_ARTEFACT, trt_.product + " cannot load " + path_ + ".", trt_.logger.words(), build_again());
  scratch_bytes = static_cast<size_t>(std::max<int64_t>(0, engine_->getDeviceMemorySizeV2()));
  read_ports();
  leave_out(keep);
}

void TensorRtEngine::abandon() noexcept {
  static_cast<void>(engine_.release());
  static_cast<void>(runtime_.release());
}

std::vector<std::string> TensorRtEngine::output_names() const {
  std::vector<std::string> names;
  for (const auto* ports : {&outputs, &left_out})
    for (const Port& port : *ports) names.push_back(port.name);
  return names;
}

Machine TensorRtEngine::this_machine() const {
  const int count = cuda.device_count();
  if (device < 0 || device >= count)
    throw Failure(CAPSEDGE_ENVIRONMENT, "There is no GPU " + std::to_string(device) + ".",
                  "CUDA sees " + std::to_string(count) + " GPUs on this machine.", "`nvidia-smi` lists the GPUs.");
  utsname system{};
  uname(&system);
  return {trt_.version, cuda.driver_version(), device_name(device), cuda.compute_capability(device), system.machine};
}

void TensorRtEngine::read_ports() {
  for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
    Port port;
    port.name = engine_->getIOTensorName(i);
    port.type = type_of(engine_->getTensorDataType(port.name.c_str()));
    port.shape = shape_of(engine_->getTensorShape(port.name.c_str()));
    const bool free_behind = std::any_of(port.shape.begin() + (port.shape.empty() ? 0 : 1), port.shape.end(),
                                         [](int64_t d) { return d < 0; });
    if (port.type == CAPSEDGE_OTHER || (free_behind && largest.length == 0) || port.shape.size() > CAPSEDGE_MAX_RANK)
      throw Failure(CAPSEDGE_ARTEFACT, path_ + " cannot be run by capsedge.",
                    "'" + port.name + "' has the type " + type_name(port.type) + " and the shape " +
                        shape_text(port.shape.data(), port.shape.size()) + "; only the batch size may vary.",
                    build_again());
    if (engine_->getTensorLocation(port.name.c_str()) != nvinfer1::TensorLocation::kDEVICE)
      throw Failure(CAPSEDGE_ARTEFACT, path_ + " cannot be run by capsedge.",
                    "'" + port.name + "' is a shape, which TensorRT keeps in host memory.", build_again());
    const bool is_input = engine_->getTensorIOMode(port.name.c_str()) == nvinfer1::TensorIOMode::kINPUT;
    (is_input ? inputs : outputs).push_back(std::move(port));
  }
}

// An engine computes all its outputs. Unwanted ones need memory too, but are not exposed.
void TensorRtEngine::leave_out(const std::vector<std::string>& keep) {
  if (keep.empty()) return;
  const std::vector<std::string> names = output_names();
  for (const std::string& name : keep)
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail_usage(path_ + " has no output '" + name + "'.", "Its outputs: " + joined(names) + ".", "Name some of these.");
  const auto kept = [&keep](const Port& port) { return std::find(keep.begin(), keep.end(), port.name) != keep.end(); };
  const auto rest = std::stable_partition(outputs.begin(), outputs.end(), kept);
  left_out.assign(std::make_move_iterator(rest), std::make_move_iterator(outputs.end()));
  outputs.erase(rest, outputs.end());
}

std::unique_ptr<nvinfer1::IExecutionContext> TensorRtEngine::new_context(void* scratch) const {
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  {
    const std::lock_guard<std::mutex> lock(creating_);
    context.reset(engine_->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
  }
  if (context == nullptr)
    throw Failure(CAPSEDGE_ENVIRONMENT, "The GPU has too little memory for " + path_ + ".", trt_.logger.words(),
                  "Close other programs, open it with fewer contexts, or build with a smaller batch.");
  context->setDeviceMemoryV2(scratch, static_cast<int64_t>(scratch_bytes));
  return context;
}

Buffers TensorRtEngine::new_buffers(const Shapes& shapes) const {
  Buffers made;
  const auto make = [&](const std::vector<Port>& ports, const std::vector<nvinfer1::Dims>& dims,
                        std::vector<std::unique_ptr<Buffer>>& to) {
    for (size_t i = 0; i < ports.size(); ++i) to.push_back(std::make_unique<Buffer>(cuda, bytes_of(ports[i], dims[i])));
  };
  make(inputs, shapes.inputs, made.inputs);
  make(outputs, shapes.outputs, made.outputs);
  make(left_out, shapes.left_out, made.left_out);
  return made;
}

Shapes TensorRtEngine::infer(nvinfer1::IExecutionContext& context, const Sizes& sizes) const {
  Shapes shapes;
  for (const Port& port : inputs) {
    shapes.inputs.push_back(dims_for(port, sizes));
    if (!context.setInputShape(port.name.c_str(), shapes.inputs.back())) fail("take the input shape");
  }
  const char* missing = nullptr;
  if (context.inferShapes(1, &missing) != 0) fail(std::string("infer its shapes") + (missing ? std::string(" without ") + missing : ""));
  for (const Port& port : outputs) shapes.outputs.push_back(context.getTensorShape(port.name.c_str()));
  for (const Port& port : left_out) shapes.left_out.push_back(context.getTensorShape(port.name.c_str()));
  return shapes;
}

Shapes TensorRtEngine::bind(nvinfer1::IExecutionContext& context, const Sizes& sizes, const Buffers& buffers) const {
  Shapes shapes = infer(context, sizes);
  const auto set = [&](const std::vector<Port>& ports, const std::vector<nvinfer1::Dims>& dims,
                       const std::vector<std::unique_ptr<Buffer>>& to) {
    for (size_t i = 0; i < ports.size(); ++i) set_buffer(context, ports[i], dims[i], *to[i]);
  };
  set(inputs, shapes.inputs, buffers.inputs);
  set(outputs, shapes.outputs, buffers.outputs);
  set(left_out, shapes.left_out, buffers.left_out);
  return shapes;
}

void TensorRtEngine::set_buffer(nvinfer1::IExecutionContext& context, const Port& port, const nvinfer1::Dims& dims,
                                const Buffer& buffer) const {
  if (std::any_of(dims.d, dims.d + dims.nbDims, [](int64_t d) { return d < 0; }) || bytes_of(port, dims) > buffer.bytes())
    fail("keep '" + port.name + "' in its buffer: it became " + shape_text(dims.d, static_cast<size_t>(dims.nbDims)));
  if (!context.setTensorAddress(port.name.c_str(), buffer.device())) fail("take the address of '" + port.name + "'");
}

bool TensorRtEngine::accepts(nvinfer1::IExecutionContext& context, CudaStream stream) const {
  return context.enqueueV3(static_cast<cudaStream_t>(stream));
}

void TensorRtEngine::enqueue(nvinfer1::IExecutionContext& context, CudaStream stream) const {
  if (!accepts(context, stream)) fail("run");
}

void TensorRtEngine::fail(const std::string& what) const {
  throw Failure(CAPSEDGE_ARTEFACT, "The engine " + path_ + " could not " + what + ".", trt_.logger.words(), build_again());
}

}  // namespace capsedge::libcapsedge
