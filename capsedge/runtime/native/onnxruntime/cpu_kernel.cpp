// The kernels of the CPU provider: constant weights are packed once, and ONNX Runtime's own threads do the work.
#include "kernels.h"
#include "operators/operator.h"
#include "simd/dispatch.h"

namespace capsedge::ort {

namespace {

struct Kernel {
  const OrtApi* api;
  const OperatorSpec* spec;
  std::unique_ptr<Operator> op;
};

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const OperatorSpec& spec = *self(op).spec;
    auto made = std::make_unique<Kernel>(
        Kernel{api, &spec, make_operator(spec.name, NodeAttributes(api, info), choose_level())});
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      int is_constant = 0;
      const OrtValue* value = nullptr;
      check(api, KernelInfoGetConstantInput_tensor(api)(info, i, &is_constant, &value));
      if (is_constant && value) made->op->constant(i, tensor_of(api, value));
    }
    *kernel = made.release();
  });
}

OrtStatus* compute(void* raw, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(raw);
  const OrtApi* api = kernel.api;
  return guarded(api, [&] {
    const NodeInputs inputs = read_inputs(api, *kernel.spec, context);
    const std::vector<Shape> wanted = kernel.op->outputs(inputs.shapes);
    const std::vector<void*> addresses = make_outputs(api, *kernel.spec, context, wanted);
    std::vector<Output> outputs;
    for (size_t i = 0; i < wanted.size(); ++i) outputs.push_back({addresses[i], wanted[i], inputs.tensors[0].type});
    struct Pool {
      const OrtApi* api;
      OrtKernelContext* context;
    } pool{api, context};
    const Threads threads{[](void* raw_pool, size_t count, void (*body)(void*, size_t), void* user) {
                            const Pool& p = *static_cast<Pool*>(raw_pool);
                            check(p.api, KernelContext_ParallelFor(p.api)(p.context, body, count, 0, user));
                          },
                          &pool};
    kernel.op->run(inputs.tensors, outputs, threads);
  });
}

}  // namespace

CustomOp cpu_operator(const OrtApi* api, const OperatorSpec& spec, size_t number, ONNXTensorElementDataType floating) {
  CustomOp op = describe(api, spec, number, floating);
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

}  // namespace capsedge::ort
