// The kernels that are part of this library, by their numbers: what CUDA takes for them, or what the emulation calls.
#pragma once

#ifdef CAPSEDGE_EMULATE
#include <cstddef>
#include <cstring>
#include <utility>
#endif

namespace capsedge {
namespace cuda {

#ifdef CAPSEDGE_EMULATE
using EmulatedKernel = void (*)(void** arguments);
extern const EmulatedKernel kernel_table[];

template <typename T>
T argument(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}
template <typename... Parameters, size_t... K>
void call_emulated(void (*kernel)(Parameters...), void** arguments, std::index_sequence<K...>) {
  kernel(argument<Parameters>(arguments[K])...);
}
template <typename... Parameters>
void call_emulated(void (*kernel)(Parameters...), void** arguments) {
  call_emulated(kernel, arguments, std::index_sequence_for<Parameters...>());
}
template <auto kernel>
void emulated(void** arguments) {
  call_emulated(kernel, arguments);
}
#else
extern const void* const kernel_table[];
#endif

}  // namespace cuda
}  // namespace capsedge
