// The kernels of the emulation, which calls them by their numbers.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

namespace capsedge {
namespace cuda {

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

}  // namespace cuda
}  // namespace capsedge
