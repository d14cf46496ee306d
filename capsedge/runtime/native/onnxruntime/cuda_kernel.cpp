// The kernels of the CUDA provider: each run only queues work on the provider's stream, with scratch memory from its
// arena, so that a CUDA graph can capture it.
#include <array>
#include <mutex>
#include <string>

#include "checked_attributes.h"
#include "cuda_abi.h"
#include "kernels.h"
#include "operators/output_shapes.h"

namespace capsedge::ort {

namespace {

// Never destroyed, because sessions may outlive the library's own statics.
struct KernelsFile {
  std::mutex mutex;
  std::string path;
};
KernelsFile& kernels_file() {
  static KernelsFile& file = *new KernelsFile;
  return file;
}

void load_kernels() {
  KernelsFile& file = kernels_file();
  const std::lock_guard<std::mutex> lock(file.mutex);
  char error[1024] = "";
  if (capsedge_cuda_load(file.path.c_str(), error, sizeof error))
    throw Error(std::string("capsedge cannot use the CUDA kernels: ") + error);
}

struct ReleaseOrtAllocator {
  const OrtApi* api;
  void operator()(OrtAllocator* allocator) const { ReleaseAllocator(api)(allocator); }
};
using Allocator = std::unique_ptr<OrtAllocator, ReleaseOrtAllocator>;

Allocator arena_of(const OrtApi* api, const OrtKernelInfo* info) {
  OrtAllocator* allocator = nullptr;
  check(api, KernelInfoGetAllocator(api)(info, OrtMemTypeDefault, &allocator));
  return Allocator(allocator, {api});
}

struct Kernel {
  const OrtApi* api;
  const OperatorSpec* spec;
  CudaNode node;
  OutputShapes output_shapes;
  Allocator arena;
};

// Scratch memory of the run's stream. It goes back when the work is queued, not when it is done: the arena lends it only
// to later work of the same stream, as it does with the scratch memory of ONNX Runtime's own kernels.
class Scratch {
 public:
  Scratch(const Kernel& kernel, const OrtKernelContext* context, const OrtValue* near, int64_t bytes)
      : arena_(kernel.arena.get()), bytes_(bytes) {
    if (bytes == 0) return;
    const OrtMemoryInfo* memory = nullptr;
    check(kernel.api, GetTensorMemoryInfo(kernel.api)(near, &memory));
    check(kernel.api, KernelContext_GetScratchBuffer(kernel.api)(context, memory, static_cast<size_t>(bytes), &data_));
  }
  ~Scratch() {
    if (data_) arena_->Free(arena_, data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  CudaScratch memory() const { return {data_, bytes_}; }

 private:
  OrtAllocator* arena_;
  void* data_ = nullptr;
  int64_t bytes_;
};

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const OperatorSpec& spec = *self(op).spec;
    load_kernels();
    const NodeAttributes source(api, info);
    const Attributes attributes(spec, source);
    const CheckedAttributes checked(attributes);
    refuse(spec, wrong_attributes(spec, checked));
    *kernel = new Kernel{api, &spec, CudaNode(spec, checked, 0), OutputShapes(attributes), arena_of(api, info)};
  });
}

OrtStatus* compute(void* raw, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(raw);
  const OrtApi* api = kernel.api;
  return guarded(api, [&] {
    const OperatorSpec& spec = *kernel.spec;
    const NodeInputs inputs = read_inputs(api, spec, context);
    const size_t count = inputs.tensors.size();
    std::array<ShapeView, kMostInputs> shapes;
    std::array<const void*, kMostInputs> addresses{};
    for (size_t i = 0; i < count; ++i) {
      shapes[i] = {inputs.shapes[i].data(), inputs.shapes[i].size()};
      addresses[i] = inputs.tensors[i].data;
    }
    const int32_t type = inputs.tensors[0].type == Type::kFloat ? CAPSEDGE_CUDA_FLOAT : CAPSEDGE_CUDA_FLOAT16;
    CudaCall call;
    refuse(spec, kernel.node.prepare(shapes.data(), count, type, call));
    const std::vector<void*> outputs = make_outputs(api, spec, context, kernel.output_shapes.of(inputs.shapes));
    if (elements(inputs.shapes[0]) == 0) return;
    int64_t bytes = 0;
    refuse(spec, kernel.node.workspace(call, bytes));
    void* stream = nullptr;
    check(api, KernelContext_GetGPUComputeStream(api)(context, &stream));
    const Scratch scratch(kernel, context, inputs.first, bytes);
    refuse(spec, kernel.node.launch(call, addresses.data(), count, outputs.data(), scratch.memory(), stream));
  });
}

}  // namespace

void set_cuda_kernels(const std::string& path) {
  KernelsFile& file = kernels_file();
  const std::lock_guard<std::mutex> lock(file.mutex);
  if (file.path.empty()) file.path = path;
  if (file.path != path)
    throw Error("capsedge: this process uses the CUDA kernels in " + file.path + ", and cannot use those in " + path +
                " as well: start a new one");
}

CustomOp cuda_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating) {
  CustomOp op = describe(api, spec, number, floating);
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return "CUDAExecutionProvider"; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

}  // namespace capsedge::ort
