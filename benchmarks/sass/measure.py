"""Instructions, memory traffic and residence of a launch, counted in its machine code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.sass import walk
from benchmarks.sass.cubin import Kernel, kernels
from benchmarks.sass.devices import MULTIPROCESSORS
from benchmarks.sass.flow import Flow
from benchmarks.sass.kinds import FMA, KINDS, classify
from benchmarks.sass.launches import Launch
from benchmarks.sass.opcodes import SHARED
from benchmarks.sass.registers import Lanes, Registers

WARP = 32
LONG = (
    20_000  # instructions: of a block whose warps have more, only the first and the last are walked
)
PLACED = 40_000  # instructions of the walk that calculates addresses


@dataclass(frozen=True)
class Count:
    """What one block of a launch issues and moves; the launch has `blocks` of them.

    Attributes:
        slots: warp instructions by kind.
        division: those that divide integers, staging included.
        fma: those of FP32 arithmetic.
        shared_bytes: wavefronts of shared memory, 128 bytes each.
        global_bytes: sectors of global memory, 32 bytes each, requested by warps.
        undecided: branches that depended on data.
    """

    slots: dict[str, float]
    division: float
    fma: float
    shared_bytes: float
    global_bytes: float
    undecided: int

    @property
    def issued(self) -> float:
        """Warp instructions of all kinds."""
        return sum(self.slots.values())


@dataclass(frozen=True)
class Ready:
    """A kernel made ready to be walked: with control flow alone, and with addresses."""

    kernel: Kernel
    kinds: tuple[str, ...]
    divides: tuple[bool, ...]
    control: walk.Prepared
    placed: walk.Prepared


@lru_cache(maxsize=64)
def ready(architecture: int, name: str) -> Ready:
    """A kernel of an architecture."""
    kernel = kernels(architecture)[name]
    flow = Flow(kernel)
    kinds, divides = classify(flow)
    return Ready(
        kernel, tuple(kinds), tuple(divides),
        walk.prepare(kernel, flow, addresses=False), walk.prepare(kernel, flow, addresses=True),
    )  # fmt: skip


def parameter_base(architecture: int) -> int:
    """Where a kernel's parameters begin in constant bank 0."""
    return 0x380 if architecture >= 100 else 0x210 if architecture >= 90 else 0x160


def constants(kernel: Kernel, launch: Launch) -> dict[int, bytes]:
    """Constant banks as the driver fills them: sizes of block and grid, and the parameters."""
    bank = bytearray(max(parameter_base(kernel.architecture) + len(launch.arguments), 4096))
    block, grid = (0x360, 0x370) if kernel.architecture >= 100 else (0, 12)
    for start, sizes in ((block, (launch.threads, 1, 1)), (grid, (*launch.grid, 1))):
        for k, size in enumerate(sizes):
            bank[start + 4 * k : start + 4 * k + 4] = size.to_bytes(4, "little")
    first = parameter_base(kernel.architecture)
    bank[first : first + len(launch.arguments)] = launch.arguments
    return {**kernel.tables, 0: bytes(bank)}


def special_registers(warp: int) -> dict[str, Lanes]:
    """Identities of a warp's threads in the grid's first block."""
    zero = np.zeros(WARP, np.uint64)
    lane = np.arange(WARP, dtype=np.uint64)
    found = {f"SR_{name}.{axis}": zero for name in ("TID", "CTAID") for axis in "XYZ"}
    return {
        **found, "SR_TID.X": lane + np.uint64(WARP * warp), "SR_LANEID": lane, "SRZ": zero, "SR_CgaCtaId":
        zero,
    }  # fmt: skip


def _walk(made: Ready, launch: Launch, warp: int, *, addresses: bool) -> walk.Trace:
    registers = Registers(constants(made.kernel, launch), special_registers(warp))
    prepared = made.placed if addresses else made.control
    return walk.walk(prepared, registers, PLACED if addresses else None)


def count(architecture: int, launch: Launch) -> Count:
    """What the grid's first block does; the last one may have less to do.

    Raises:
        CapsedgeError: nvcc or nvdisasm is missing.
        walk.Lost: the code jumps to a place that cannot be known.
    """
    made = ready(architecture, launch.kernel)
    warps = -(-launch.threads // WARP)
    first = _walk(made, launch, 0, addresses=False)
    long = int(first.counts.sum()) > LONG
    others = [warps - 1] * (warps > 1) if long else range(1, warps)
    traces = [first, *(_walk(made, launch, warp, addresses=False) for warp in others)]
    counts = np.sum([trace.counts for trace in traces], axis=0) * (warps / len(traces))
    placed = [
        _walk(made, launch, warp, addresses=True)
        for warp in ({0, warps - 1} if long else range(warps))
    ]
    return _totals(made, counts, placed, sum(t.undecided.total() for t in traces))


def _totals(made: Ready, counts: Lanes, placed: list[walk.Trace], undecided: int) -> Count:
    code = made.kernel.code
    slots = dict.fromkeys(KINDS, 0.0)
    for at in np.flatnonzero(counts):
        slots[made.kinds[at]] += float(counts[at])
    seen = np.sum([trace.counts for trace in placed], axis=0)
    moved = {True: 0.0, False: 0.0}
    for trace in placed:
        for place, traffic in trace.traffic.items():
            share = float(counts[place]) / float(seen[place])
            moved[code[place].base in SHARED] += traffic.units * share
    return Count(
        slots=slots,
        division=float(sum(counts[at] for at in np.flatnonzero(counts) if made.divides[at])),
        fma=float(sum(counts[at] for at in np.flatnonzero(counts) if code[at].base in FMA)),
        shared_bytes=moved[True],
        global_bytes=moved[False],
        undecided=undecided,
    )


def resident_blocks(kernel: Kernel, threads: int, shared: int) -> tuple[int, str]:
    """Blocks that a multiprocessor holds at once, and what limits them.

    The rules are those of NVIDIA's occupancy calculator: registers are given out 256 at a time for each
    warp, shared memory 128 bytes at a time, after 1024 bytes for each block.
    """
    limits = MULTIPROCESSORS[kernel.architecture]
    warps = -(-threads // WARP)
    by_registers = limits.registers // (math.ceil(kernel.registers * WARP / 256) * 256) // warps
    used = math.ceil((shared + kernel.shared) / 128) * 128 + 1024
    found = {
        "registers": by_registers,
        "shared memory": limits.shared // used,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    least = min(found, key=lambda name: found[name])
    return found[least], least
