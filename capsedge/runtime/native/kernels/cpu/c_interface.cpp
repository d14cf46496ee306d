#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "capsedge/kernels.h"
#include "operators/listed_attributes.h"
#include "operators/operator.h"
#include "operators_json.h"
#include "simd/dispatch.h"

struct capsedge_kernel {
  std::unique_ptr<capsedge::Operator> made;
};

namespace {

using namespace capsedge;

Tensor tensor_of(const capsedge_kernel_tensor& t) {
  // The numbers of the interface are those of Type.
  if (t.type < CAPSEDGE_KERNEL_FLOAT || t.type > CAPSEDGE_KERNEL_INT32)
    throw Error("a tensor has type " + std::to_string(t.type) + ": wanted one of CAPSEDGE_KERNEL_FLOAT, _FLOAT16, ...");
  return {t.data, Shape(t.shape, t.shape + t.rank), static_cast<Type>(t.type)};
}

// Starts threads for each call: enough for tests; a runtime has its own pool.
Threads started_threads(int32_t& count) {
  return {[](void* pool, size_t pieces, void (*body)(void*, size_t), void* user) {
            std::atomic<size_t> next{0};
            const auto work = [&] {
              for (size_t i; (i = next.fetch_add(1)) < pieces;) body(user, i);
            };
            std::vector<std::thread> helpers;
            const auto extra = std::min<size_t>(static_cast<size_t>(*static_cast<int32_t*>(pool)), pieces) - 1;
            for (size_t i = 0; i < extra; ++i) helpers.emplace_back(work);
            work();
            for (std::thread& helper : helpers) helper.join();
          },
          &count};
}

template <typename F>
int guarded(char* error, size_t error_size, F&& f) {
  std::string text;
  try {
    f();
    return 0;
  } catch (const std::bad_alloc&) {
    text = "not enough memory";
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "unknown failure";
  }
  if (error_size > 0) {
    const size_t length = std::min(text.size(), error_size - 1);
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
  }
  return 1;
}

}  // namespace

const char* capsedge_kernel_levels(void) {
  static const std::string names = [] {
    std::string text;
    for (const Level* level : levels_here()) text += (text.empty() ? "" : ",") + std::string(level->name);
    return text;
  }();
  return names.c_str();
}

const char* capsedge_kernel_operators(void) {
  static const std::string json = operators_json();
  return json.c_str();
}

int capsedge_kernel_create(const char* name, const capsedge_kernel_attribute* attributes, int32_t count,
                           capsedge_kernel** created, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    auto made = make_operator(name, ListedAttributes(attributes, count), choose_level());
    *created = new capsedge_kernel{std::move(made)};
  });
}

const char* capsedge_kernel_level_of(const capsedge_kernel* created) { return created->made->level().name; }

int capsedge_kernel_constant(capsedge_kernel* created, int32_t index, const capsedge_kernel_tensor* tensor, char* error,
                             size_t error_size) {
  return guarded(error, error_size,
                 [&] { created->made->constant(static_cast<size_t>(index), tensor_of(*tensor)); });
}

int capsedge_kernel_run(const capsedge_kernel* created, const capsedge_kernel_tensor* inputs, int32_t input_count,
                        const capsedge_kernel_tensor* outputs, int32_t output_count, int32_t threads, char* error,
                        size_t error_size) {
  return guarded(error, error_size, [&] {
    std::vector<Tensor> in;
    std::vector<Shape> shapes;
    for (int32_t i = 0; i < input_count; ++i) {
      in.push_back(tensor_of(inputs[i]));
      shapes.push_back(in.back().shape);
    }
    const std::vector<Shape> wanted = created->made->outputs(shapes);
    std::vector<Output> out;
    for (int32_t i = 0; i < output_count; ++i) {
      const Tensor t = tensor_of(outputs[i]);
      if (static_cast<size_t>(i) >= wanted.size() || t.shape != wanted[static_cast<size_t>(i)])
        throw Error("output " + std::to_string(i) + " has shape " + to_text(t.shape) + ": wanted " +
                    (static_cast<size_t>(i) < wanted.size() ? to_text(wanted[static_cast<size_t>(i)]) : "none"));
      if (t.type != in[0].type) throw Error("output " + std::to_string(i) + " is not of the type of the first input");
      out.push_back({outputs[i].data, t.shape, t.type});
    }
    if (out.size() != wanted.size()) throw Error("wanted " + std::to_string(wanted.size()) + " outputs");
    int32_t count = std::max(threads, 1);
    created->made->run(in, out, started_threads(count));
  });
}

void capsedge_kernel_destroy(capsedge_kernel* created) { delete created; }
