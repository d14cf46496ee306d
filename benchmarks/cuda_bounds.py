"""Estimates: a lower bound on a layer's time from what its kernels do, and the roofline of its algorithm.

Sources of the rates: CUDA C++ Programming Guide, "Arithmetic Instructions" (results per clock); Jetson Orin
Nano and Orin NX series data sheets (8 GB and 16 GB modules at MAXN SUPER), H100 Tensor Core GPU data sheet
and architecture white paper (SXM5), L4 data sheet, GeForce RTX 5090 (Blackwell architecture white paper).
Clocks are the highest documented; sustained ones are lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.operators import Layer

LANES = 32
SECTOR = 32  # bytes in a sector
ISSUE = 4  # warp instructions per clock and multiprocessor: one for each of its four schedulers
FMA = 4  # warp instructions of FP32 arithmetic, likewise
TURNS = 1  # of the 32 banks of shared memory, likewise


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        clock: clock rate in Hz.
        bandwidth: DRAM bandwidth in bytes per second.
        cache: size of the second-level cache in bytes.
    """

    name: str
    architecture: int
    multiprocessors: int
    clock: float
    bandwidth: float
    cache: int


DEVICES = (
    Device("Orin Nano 8 GB", 87, 8, 1.020e9, 102.4e9, 2 << 20),
    Device("Orin NX 16 GB", 87, 8, 1.173e9, 102.4e9, 2 << 20),
    Device("L4", 89, 58, 2.040e9, 300e9, 48 << 20),
    Device("H100 SXM", 90, 132, 1.980e9, 3350e9, 50 << 20),
    Device("RTX 5090", 120, 170, 2.407e9, 1792e9, 96 << 20),
)


@dataclass(frozen=True)
class Work:
    """What a layer's algorithm has to do if votes never reach global memory.

    Attributes:
        votes: number of votes in one pass, over all images and positions.
        passes: how often every vote is computed.
        arithmetic: FP32 operations per vote over all passes, counting a multiply-add as one.
        footprint: bytes of inputs, weights and outputs, each counted once.
    """

    votes: int
    passes: int
    arithmetic: int
    footprint: int

    @property
    def made(self) -> int:
        """The number of votes computed over all passes."""
        return self.votes * self.passes


def work_of(layer: Layer) -> Work:
    """Votes, passes and arithmetic of a dynamic, EM or attention routing layer.

    Dynamic routing: a vote takes ``inner * columns`` multiply-adds; each pass adds it to a weighted sum, and
    all but the first compare it (Sabour et al. 2017, procedure 1). EM routing: all but the first pass compute
    a deviation, its square and its weighted sum for each element, and every pass updates mean and variance
    with four operations (Hinton et al. 2018, procedure 1; West 1979). Attention routing: one pass of both.
    """
    weight, first = layer.inputs["weight"], next(iter(layer.inputs.values()))
    sizes = int(layer.bytes)
    if layer.operator == "DynamicRouting":
        children, parents, columns, inner = weight.shape
        passes = int(layer.attributes["iterations"])
        arithmetic = passes * (inner + 1) * columns + (passes - 1) * columns
        return Work(len(first) * children * parents, passes, arithmetic, sizes)
    rows, columns, types, parents, inner, outer = weight.shape
    pose = inner * outer
    grid = [(size - window) // step + 1 for size, window, step in zip(
        first.shape[1:3], (rows, columns), layer.attributes["strides"], strict=True)]  # fmt: skip
    votes = len(first) * math.prod(grid) * rows * columns * types * parents
    if layer.operator == "AttentionRouting":
        return Work(votes, 1, inner * pose + 2 * pose, sizes)
    passes = len(layer.attributes["inverse_temperatures"])
    return Work(votes, passes, passes * (inner * pose + 4 * pose) + (passes - 1) * 3 * pose, sizes)


@dataclass(frozen=True)
class Bound:
    """Seconds that each resource of a GPU is busy for, summed over a layer's launches.

    Attributes:
        total: the largest of the four for each launch, summed.
        roofline: the larger of the algorithm's own arithmetic and memory time, using all multiprocessors.
    """

    issue: float
    fma: float
    shared: float
    dram: float
    total: float
    roofline: float

    @property
    def ratio(self) -> float:
        """The ratio of the bound to the roofline."""
        return self.total / self.roofline


def bound(device: Device, work: Work, launches: Sequence[Mapping[str, Any]]) -> Bound:
    """The largest of issue, FMA, shared-memory and DRAM time of every launch, summed over the launches.

    The first three are those of the multiprocessor with the most blocks, ``ceil(blocks / multiprocessors)``
    of them. Register moves are not counted, because ptxas removes them. A launch reads no more from DRAM than
    it requests or than the layer has: in every launch if that exceeds the cache, otherwise once. Latency,
    occupancy, tails, launch overhead and the second-level cache's rate are ignored.

    Args:
        launches: the launches, as in `tools.ptx.build.Executor.launches`.
    """
    sums = {"issue": 0.0, "fma": 0.0, "shared": 0.0, "dram": 0.0}
    total, left = 0.0, float(work.footprint)
    for launch in launches:
        blocks = math.prod(launch["grid"])
        share = math.ceil(blocks / device.multiprocessors) / blocks / device.clock
        moved = min(
            launch["sectors"] * SECTOR, work.footprint if work.footprint > device.cache else left
        )
        left -= min(moved, left)
        times = {
            "issue": share * issued(launch) / ISSUE,
            "fma": share * launch["fp32"] / FMA,
            "shared": share * launch["turns"] / TURNS,
            "dram": moved / device.bandwidth,
        }
        for name, value in times.items():
            sums[name] += value
        total += max(times.values())
    lanes = device.multiprocessors * FMA * LANES * device.clock
    roofline = max(work.votes * work.arithmetic / lanes, work.footprint / device.bandwidth)
    return Bound(**sums, total=total, roofline=roofline)


def issued(launch: Mapping[str, Any]) -> int:
    """The number of warp instructions, without register moves."""
    return int(sum(launch["warps"].values()) - launch["warps"]["move"])
