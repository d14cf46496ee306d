#include "memory.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace ptx {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

void Allocation::halve_cells() {
  std::vector<Cell> halves(2 * cells.size());
  for (size_t k = 0; k < halves.size(); ++k) halves[k] = cells[k / 2];
  cells.swap(halves);
  --shift;
}

Allocation* Memory::allocate(uint64_t bytes, bool device, int gpu) {
  auto made = std::make_unique<Allocation>();
  const uint64_t room = bytes + 2 * kGuard + kAlignment;
  made->room.reset(new (std::nothrow) char[room]);
  if (!made->room) return nullptr;
  const auto start = reinterpret_cast<uint64_t>(made->room.get());
  made->address = (start + kGuard + kAlignment - 1) / kAlignment * kAlignment;
  made->bytes = bytes;
  made->device = device;
  made->gpu = gpu;
  std::memset(made->host(), 0xff, bytes);  // NaN in all precisions
  made->written.assign(bytes, !device);
  in_use_[gpu] += device ? bytes : 0;
  live_[made->address] = made.get();
  all_.push_back(std::move(made));
  return all_.back().get();
}

bool Memory::release(uint64_t address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  Allocation& own = *found->second;
  in_use_[own.gpu] -= own.device ? own.bytes : 0;
  own.bytes = 0;
  own.room.reset();
  own.written = std::vector<uint8_t>();  // {} alone would keep the memory
  own.cells = std::vector<Cell>();
  live_.erase(found);
  return true;
}

Allocation* Memory::before(uint64_t address) {
  const auto next = live_.upper_bound(address);
  return next == live_.begin() ? nullptr : std::prev(next)->second;
}
Allocation* Memory::find(uint64_t address) {
  Allocation* const found = before(address);
  return found && address < found->address + found->bytes ? found : nullptr;
}

void Memory::mark_written(uint64_t address, uint64_t bytes) {
  Allocation* found = find(address);
  if (!found) return;
  const auto from = found->written.begin() + static_cast<int64_t>(address - found->address);
  std::fill(from, from + static_cast<int64_t>(bytes), uint8_t{1});
}

}  // namespace ptx
