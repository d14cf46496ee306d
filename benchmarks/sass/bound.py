"""A lower bound of a layer's time from its counts, and the roofline of its algorithm. Both are estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.operators import Layer
from benchmarks.sass.devices import ISSUE, MULTIPROCESSORS, SHARED_BYTES, Device
from benchmarks.sass.launches import Launch
from benchmarks.sass.measure import Count

LANES = 32


@dataclass(frozen=True)
class Work:
    """What a layer's algorithm has to do when votes never reach global memory.

    Attributes:
        votes: of one pass, over all images and positions.
        passes: times that every vote is made.
        arithmetic: FP32 operations of a vote over all passes, a multiply-add being one.
        footprint: bytes of inputs, weights and outputs, once each.
    """

    votes: int
    passes: int
    arithmetic: int
    footprint: int

    @property
    def made(self) -> int:
        """Votes over all passes."""
        return self.votes * self.passes


def work_of(layer: Layer) -> Work:
    """Votes, passes and arithmetic of a layer of dynamic, EM or attention routing.

    Dynamic routing: a vote is ``inner * columns`` multiply-adds, each pass adds it up weighted, and all but
    the first compare it (Sabour et al. 2017, procedure 1). EM routing: all but the first pass take a
    deviation, its square and its weighted sum for each element, and every pass updates mean and variance by
    four operations (Hinton et al. 2018, procedure 1; West 1979). Attention routing: one pass of both.
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
        total: the largest of the four of each launch, summed.
        roofline: the larger of arithmetic and memory time of the algorithm alone, at all multiprocessors.
    """

    issue: float
    fma: float
    shared: float
    dram: float
    total: float
    roofline: float

    @property
    def ratio(self) -> float:
        """Of the bound to the roofline."""
        return self.total / self.roofline


def bound(device: Device, work: Work, launches: Sequence[tuple[Launch, Count]]) -> Bound:
    """The largest of issue, FMA, shared-memory and DRAM time of every launch, summed over the launches.

    The first three are those of the multiprocessor with the most blocks, ``ceil(blocks / multiprocessors)``
    of them. A launch reads no more from DRAM than it requests or than the layer has: in every launch if
    that exceeds the cache, else once. Latency, occupancy, tails, launch overhead and the second-level
    cache's rate are not in it.
    """
    rates = MULTIPROCESSORS[device.architecture]
    sums = {"issue": 0.0, "fma": 0.0, "shared": 0.0, "dram": 0.0}
    total, left = 0.0, float(work.footprint)
    for launch, count in launches:
        blocks = math.ceil(launch.blocks / device.multiprocessors)
        requested = count.global_bytes * launch.blocks
        moved = min(requested, work.footprint if work.footprint > device.cache else left)
        left -= min(moved, left)
        times = {
            "issue": blocks * count.issued / (ISSUE * device.clock),
            "fma": blocks * count.fma / (rates.fma * device.clock),
            "shared": blocks * count.shared_bytes / (SHARED_BYTES * device.clock),
            "dram": moved / device.bandwidth,
        }
        for name, value in times.items():
            sums[name] += value
        total += max(times.values())
    lanes = device.multiprocessors * rates.fma * LANES * device.clock
    roofline = max(work.votes * work.arithmetic / lanes, work.footprint / device.bandwidth)
    return Bound(**sums, total=total, roofline=roofline)
