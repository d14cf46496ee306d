#include "machine.h"

#include <algorithm>
#include <cstring>

namespace ptx {

// CUDA C++ Programming Guide, "Compute Capabilities"; multiprocessors of a T4, A100, RTX 3090, AGX Orin, L4, H100 SXM,
// B200 and RTX 5090.
static const Limits kLimits[] = {
    {75, 40, 32, 16, 65536, 64 << 10, 64 << 10},    {80, 108, 64, 32, 65536, 164 << 10, 163 << 10},
    {86, 82, 48, 16, 65536, 100 << 10, 99 << 10},   {87, 16, 48, 16, 65536, 164 << 10, 163 << 10},
    {89, 58, 48, 24, 65536, 100 << 10, 99 << 10},   {90, 132, 64, 32, 65536, 228 << 10, 227 << 10},
    {100, 148, 64, 32, 65536, 228 << 10, 227 << 10}, {120, 170, 48, 24, 65536, 100 << 10, 99 << 10},
};
const Limits* limits_of(int architecture) {
  for (const Limits& known : kLimits)
    if (known.architecture == architecture) return &known;
  return nullptr;
}

void Warp::use(uint32_t lanes) {
  mask = lanes;
  for (int l = 0; l < kLanes; ++l) active[l] = lanes >> l & 1 ? -1 : 0;
}
Access Warp::access(int lane) const {
  return {cta->serial, static_cast<uint16_t>(number * kLanes + lane), cta->epoch};
}

static std::string place_of(const Cta& cta, int thread) {
  return cta.launch->kernel->name + ", block (" + std::to_string(cta.x) + ", " + std::to_string(cta.y) + "), thread " +
         std::to_string(thread);
}
static std::string line_of(const Kernel& kernel, uint32_t line) {
  std::string text = kernel.text(line);
  std::replace(text.begin(), text.end(), '\t', ' ');
  return ", PTX line " + std::to_string(line) + ":" + text.substr(0, text.find_last_not_of(' ') + 1);
}

[[noreturn]] void fault(const Instruction& i, const Warp& w, int lane, int code, const std::string& why) {
  throw Fault(code, why + ": " + place_of(*w.cta, w.number * kLanes + lane) + line_of(*w.cta->launch->kernel, i.line));
}
[[noreturn]] static void fault_at(const Warp& w, uint32_t block, uint32_t lanes, const std::string& why) {
  const Kernel& kernel = *w.cta->launch->kernel;
  throw Fault(kLaunchFailure, why + ": " + place_of(*w.cta, w.number * kLanes + __builtin_ctz(lanes)) +
                                  line_of(kernel, kernel.blocks[block].line));
}

// Races: two accesses, one of which writes, are ordered by a barrier that both threads pass between them, and by nothing
// else: not by a shuffle, and not by the order in which warps happen to run.
namespace {

bool unordered(const Access& before, const Access& now, const Cta& cta) {
  const Launch& launch = *cta.launch;
  if (before.serial < launch.first_serial) return false;
  if (before.serial == now.serial) return before.thread != now.thread && before.epoch == now.epoch;
  const uint32_t size = static_cast<uint32_t>(launch.cluster), other = before.serial - launch.first_serial;
  if (other / size != (now.serial - launch.first_serial) / size) return true;
  const std::vector<uint16_t>& passed = (*cta.cluster)[other % size]->cluster_epochs;
  const auto then = std::upper_bound(passed.begin(), passed.end(), before.epoch) - passed.begin();
  return then >= static_cast<int64_t>(cta.cluster_epochs.size());
}

void note(const Instruction& i, Warp& w, int lane, Cell& cell, bool writes) {
  const Access now = w.access(lane);
  const auto check = [&](const Access& before, const char* what) {
    if (!unordered(before, now, *w.cta)) return;
    fault(i, w, lane, kLaunchFailure,
          std::string("race: ") + what + " thread " + std::to_string(before.thread) + " of " +
              (before.serial == now.serial ? "its block" : "another block") + ", with no barrier between");
  };
  check(cell.write, writes ? "writes what was written by" : "reads what was written by");
  if (writes) {
    check(cell.read, "writes what was read by");
    check(cell.other, "writes what was read by");
    cell.write = now;
  } else {
    if (cell.read.serial != now.serial || cell.read.thread != now.thread) cell.other = cell.read;
    cell.read = now;
  }
}

uint64_t offset_in_shared(const Instruction& i, Warp& w, int lane, const Cta& cta, uint64_t address, int size) {
  const uint64_t offset = address - kSharedStart, bytes = static_cast<uint64_t>(size);
  if (address < kSharedStart || offset + bytes > cta.launch->shared)
    fault(i, w, lane, kIllegalAddress,
          "outside of shared memory (byte " + std::to_string(static_cast<int64_t>(offset)) + " of " + std::to_string(cta.launch->shared) + ")");
  if (address % bytes) fault(i, w, lane, kMisaligned, "a misaligned address in shared memory");
  return offset;
}

char* in_shared(const Instruction& i, Warp& w, int lane, Cta& cta, uint64_t address, int size, bool writes) {
  const uint64_t offset = offset_in_shared(i, w, lane, cta, address, size);
  if (w.cta->machine->checks) {
    for (uint64_t k = offset / 4; k <= (offset + static_cast<uint64_t>(size) - 1) / 4; ++k) {
      if (cta.flying[k]) fault(i, w, lane, kLaunchFailure, "shared memory whose copy has not been waited for");
      if (!writes && !cta.cells[k].write.serial) fault(i, w, lane, kLaunchFailure, "reads shared memory that nobody has written");
      note(i, w, lane, cta.cells[k], writes);
    }
    if (&cta != w.cta) cta.read_by_others = std::max(cta.read_by_others, static_cast<int>(w.cta->cluster_epochs.size()));
  }
  return cta.shared.data() + offset;
}

}  // namespace

char* shared_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes) {
  return in_shared(i, w, lane, *w.cta, address & 0xffffffffu, size, writes);
}

char* generic_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes) {
  if (!(address & kWindow)) return global_access(i, w, lane, address, size, writes);
  const uint64_t rank = (address & ~kWindow) >> 32;
  if (rank >= w.cta->cluster->size()) fault(i, w, lane, kIllegalAddress, "shared memory of a block that its cluster does not have");
  return in_shared(i, w, lane, *(*w.cta->cluster)[rank], address & 0xffffffffu, size, writes);
}

char* global_access(const Instruction& i, Warp& w, int lane, uint64_t address, int size, bool writes) {
  const uint64_t bytes = static_cast<uint64_t>(size);
  if (!i.near || !i.near->contains(address, bytes)) {
    i.near = w.cta->machine->memory.before(address);
    if (!i.near || address >= i.near->address + i.near->bytes + kGuard)
      fault(i, w, lane, kIllegalAddress, "an address in no allocation");
    if (!i.near->contains(address, bytes))
      fault(i, w, lane, kIllegalAddress,
            "byte " + std::to_string(address - i.near->address) + " of an allocation of " + std::to_string(i.near->bytes) + " bytes");
  }
  if (address % bytes) fault(i, w, lane, kMisaligned, "a misaligned address");
  Allocation& own = *i.near;
  if (own.device && own.gpu != w.cta->machine->gpu) fault(i, w, lane, kIllegalAddress, "memory of another GPU");
  const uint64_t offset = address - own.address;
  if (w.cta->machine->checks) {
    uint8_t* const written = own.written.data() + offset;
    if (writes) std::memset(written, 1, bytes);
    else if (std::memchr(written, 0, bytes)) fault(i, w, lane, kLaunchFailure, "reads memory that nobody has written");
    if (own.cells.empty()) own.cells.resize((own.bytes >> own.shift) + 1);
    while (writes && 1 << own.shift > size) own.halve_cells();
    for (uint64_t k = offset >> own.shift; k <= (offset + bytes - 1) >> own.shift; ++k) note(i, w, lane, own.cells[k], writes);
  }
  return own.host() + offset;
}

void start_copy(const Instruction& i, Warp& w, int lane, uint64_t to, uint64_t from) {
  const char* source = global_access(i, w, lane, from, 16, false);
  char* target = shared_access(i, w, lane, to, 16, true);
  std::memset(target, 0xff, 16);
  const auto offset = static_cast<uint32_t>(target - w.cta->shared.data());
  for (uint32_t k = offset / 4; k < offset / 4 + 4; ++k) w.cta->flying[k] = true;
  w.copies.push_back({offset, source, lane});
}

void finish_copies(const Instruction& i, Warp& w) {
  if (w.at<uint32_t>(i.a)[0]) fault(i, w, 0, kIllegalInstruction, "waits for some of its copies only, which is not known here");
  std::vector<Copy> others;
  for (const Copy& copy : w.copies) {
    if (!(w.mask >> copy.lane & 1)) {
      others.push_back(copy);
      continue;
    }
    std::memcpy(w.cta->shared.data() + copy.to, copy.from, 16);
    for (uint32_t k = copy.to / 4; k < copy.to / 4 + 4; ++k) {
      w.cta->flying[k] = false;
      w.cta->cells[k].write = w.access(copy.lane);
    }
  }
  w.copies.swap(others);
}

// The lanes that go on, those at the earliest place first, so that others find them where ways meet. False when all
// have returned.
bool Machine::settle(Warp& w) {
  const std::vector<Block>& blocks = w.cta->launch->kernel->blocks;
  const auto add = [&](Group own) {
    for (Group& group : w.groups)
      if (group.block == own.block) {
        group.mask |= own.mask;
        return;
      }
    w.groups.push_back(own);
  };
  if (w.mask) add({w.block, w.mask});
  if (w.groups.empty()) return false;
  size_t best = w.groups.size();
  for (size_t k = 0; k < w.groups.size(); ++k) {
    const Group& group = w.groups[k];
    if (blocks[group.block].meeting != Meeting::kNone && group.mask != w.all) continue;  // waits for the others
    if (best == w.groups.size() || group.block < w.groups[best].block) best = k;
  }
  if (best == w.groups.size()) {
    const Group& first = w.groups[0];
    const bool shuffle = blocks[first.block].meeting == Meeting::kShuffle;
    fault_at(w, first.block, first.mask,
             std::string(shuffle ? "lanes are not all at the same shuffle" : "a barrier is not reached by all") +
                 (w.exited ? "; some have returned" : ""));
  }
  w.block = w.groups[best].block;
  w.use(w.groups[best].mask);
  w.groups.erase(w.groups.begin() + static_cast<int64_t>(best));
  return true;
}

void Machine::run_warp(Warp& w) {
  Launch& launch = *w.cta->launch;
  const Kernel& kernel = *launch.kernel;
  for (;;) {
    const Block* block = &kernel.blocks[w.block];
    if (!w.resumed) {
      if (!w.mask || !w.groups.empty() || (block->meeting != Meeting::kNone && w.mask != w.all)) {
        if (!settle(w)) return;
        block = &kernel.blocks[w.block];
      }
      if (block->meeting == Meeting::kShuffle && w.mask != kFull)
        fault_at(w, w.block, w.mask, "a shuffle in a warp of fewer than 32 threads");
      if (block->meeting == Meeting::kClusterArrive) w.arrived = true;
      if (block->meeting == Meeting::kClusterWait && !w.arrived) fault_at(w, w.block, w.mask, "waits for a cluster without having arrived");
      if (block->meeting == Meeting::kBarrier || block->meeting == Meeting::kClusterWait) {
        w.at_barrier = true;
        return;
      }
    }
    w.resumed = false;
    ++issued_[w.block];
    lanes_[w.block] += static_cast<uint64_t>(__builtin_popcount(w.mask));
    for (uint32_t k = block->first; k < block->last; ++k) kernel.code[k].run(kernel.code[k], w);
    switch (block->jump) {
      case Jump::kNext: ++w.block; break;
      case Jump::kAlways: w.block = block->target; break;
      case Jump::kTrap: fault_at(w, w.block, w.mask, "trap");
      case Jump::kExit:
        if (!w.copies.empty()) fault_at(w, w.block, w.mask, "a thread returns without waiting for its copies");
        w.exited |= w.mask;
        w.use(0);
        break;
      default: {
        const uint32_t p = block->predicate & kConstant ? (block->predicate & 1 ? kFull : 0) : w.predicates[block->predicate];
        const uint32_t taken = (block->jump == Jump::kIf ? p : ~p) & w.mask;
        if (taken && taken != w.mask) {
          ++launch.counts.divergent;
          w.groups.push_back({block->target, taken});
          w.use(w.mask & ~taken);
          ++w.block;
        } else {
          w.block = taken ? block->target : w.block + 1;
        }
      }
    }
  }
}

// Whether all threads of all blocks were at the cluster's barrier, which they then have passed.
bool Machine::cluster_barrier() {
  for (const auto& cta : cluster_)
    for (const Warp& warp : cta->warps)
      if (!warp.at_barrier || cta->launch->kernel->blocks[warp.block].meeting != Meeting::kClusterWait) return false;
  for (const auto& cta : cluster_) {
    cta->cluster_epochs.push_back(++cta->epoch);
    for (Warp& warp : cta->warps) {
      warp.at_barrier = warp.arrived = false;
      warp.resumed = true;
    }
  }
  return true;
}

void Machine::run_cluster(Launch& launch, int64_t x, int64_t y) {
  const Kernel& kernel = *launch.kernel;
  const int warps = (launch.threads + kLanes - 1) / kLanes;
  registers_.resize(static_cast<size_t>(launch.cluster * warps) * kernel.register_bytes + 64);
  predicates_.resize(static_cast<size_t>(launch.cluster * warps) * kernel.predicates);
  for (int rank = 0; rank < launch.cluster; ++rank) {
    Cta& cta = *cluster_[static_cast<size_t>(rank)];
    cta.launch = &launch;
    cta.machine = this;
    cta.cluster = &cluster_;
    cta.x = x;
    cta.y = y + rank;
    cta.rank = rank;
    cta.serial = next_serial++;
    cta.epoch = 0;
    cta.cluster_epochs.clear();
    cta.read_by_others = -1;
    cta.shared.assign(launch.shared, static_cast<char>(0xff));
    cta.cells.assign((launch.shared + 3) / 4, Cell());
    cta.flying.assign((launch.shared + 3) / 4, false);
    cta.warps.assign(static_cast<size_t>(warps), Warp());
    for (int n = 0; n < warps; ++n) {
      Warp& warp = cta.warps[static_cast<size_t>(n)];
      const auto index = static_cast<size_t>(rank * warps + n);
      warp.registers = registers_.data() + index * kernel.register_bytes;
      warp.predicates = predicates_.data() + index * kernel.predicates;
      warp.constants = reinterpret_cast<const char*>(kernel.constants.data());
      warp.number = n;
      warp.cta = &cta;
      const int here = std::min(kLanes, launch.threads - n * kLanes);
      warp.all = here == kLanes ? kFull : (1u << here) - 1;
      warp.use(warp.all);
    }
  }
  for (bool left = true; left;) {
    left = false;
    bool progress = false;
    for (const auto& cta : cluster_) {
      size_t waiting = 0, ended = 0;
      const Warp* waits = nullptr;
      for (Warp& warp : cta->warps) {
        if (warp.exited != warp.all && !warp.at_barrier) {
          run_warp(warp);
          progress = true;
        }
        ended += warp.exited == warp.all;
        if (warp.at_barrier && kernel.blocks[warp.block].meeting == Meeting::kBarrier) {
          ++waiting;
          waits = &warp;
        }
      }
      left |= ended < cta->warps.size();
      if (waiting && ended) fault_at(*waits, waits->block, waits->mask, "a barrier is not reached by all; some have returned");
      if (waiting < cta->warps.size()) continue;
      ++cta->epoch;
      progress = true;
      for (Warp& warp : cta->warps) {
        warp.at_barrier = false;
        warp.resumed = true;
      }
    }
    if (left && !progress && !cluster_barrier()) {
      for (const auto& cta : cluster_)
        for (const Warp& warp : cta->warps)
          if (warp.at_barrier) fault_at(warp, warp.block, warp.mask, "threads wait at different barriers, or some have returned");
    }
  }
  for (const auto& cta : cluster_)
    if (cta->read_by_others >= static_cast<int>(cta->cluster_epochs.size()))
      throw Fault(kLaunchFailure, "a block may end before others have read its memory: " + place_of(*cta, 0));
}

void Machine::run(Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  launch.first_serial = next_serial;
  issued_.assign(kernel.blocks.size(), 0);
  lanes_.assign(kernel.blocks.size(), 0);
  cluster_.resize(static_cast<size_t>(launch.cluster));
  for (auto& cta : cluster_)
    if (!cta) cta = std::make_unique<Cta>();
  for (int64_t y = 0; y < launch.grid.y; y += launch.cluster)
    for (int64_t x = 0; x < launch.grid.x; ++x) run_cluster(launch, x, y);
  kernel.executed.resize(kernel.blocks.size());
  for (size_t b = 0; b < kernel.blocks.size(); ++b) {
    kernel.executed[b] += issued_[b];
    for (int k = 0; k < kKinds; ++k) {
      const uint64_t each = kernel.blocks[b].kinds[k];
      launch.counts.issued[static_cast<size_t>(k)] += each * issued_[b];
      launch.counts.lanes[static_cast<size_t>(k)] += each * lanes_[b];
    }
    launch.counts.fp32 += kernel.blocks[b].fp32 * issued_[b];
  }
}

}  // namespace ptx
