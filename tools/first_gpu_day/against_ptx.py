"""Compare Nsight Compute's counts with those of the PTX executed on a CPU by `benchmarks.cuda_counts`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_bounds import DEVICES

COUNTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "cuda-counts.json"
LAYERS = {  # by the names of the two programs
    ("digit", 1): "dynamic, B=1",
    ("digit", 128): "dynamic, B=128",
    ("16 to 7", 1): "EM, B=1",
    ("16 to 7", 32): "EM, B=32",
}
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
HEADER = (
    "layer", "batch", "kernel", "launches", "grid", "registers", "warp instructions / PTX",
    "bank conflicts", "by words", "by phases",
)  # fmt: skip


def rows(gpu: Mapping[str, Any], counters: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """A row for each kernel of the layers counted in both ways; none for a GPU without counts.

    PTX instructions are counted without moves, which ptxas mostly removes. A conflict is a cycle of the banks
    beyond the minimum; words are served all at once, requests of 8 or 16 bytes per lane in phases.

    Args:
        gpu: from the inventory: ``compute_capability``, ``multiprocessors``.
        counters: documents from the step *counters*.
    """
    known = json.loads(COUNTS.read_text())["devices"]
    size = (int(gpu["compute_capability"].replace(".", "")), gpu["multiprocessors"])
    name = next((d.name for d in DEVICES if (d.architecture, d.multiprocessors) == size), None)
    if name not in known:
        return
    for found in counters:
        layer = LAYERS.get((found["layer"], found["batch"]))
        for counted in known[name]["layers"].get(layer, ()):
            kernel = _base(counted["kernel"])
            launches = [x for x in found["launches"] if _base(x["kernel"]) == kernel]
            if launches:
                yield [found["layer"], str(found["batch"]), f"`{kernel}`", *_row(counted, launches)]


def _row(counted: Mapping[str, Any], launches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield _both(len(launches), counted["launches"])
    grid = re.findall(r"\d+", launches[0]["grid"])[: len(counted["grid"])]
    yield _both("x".join(grid), "x".join(map(str, counted["grid"])))
    yield _both(int(launches[0]["launch__registers_per_thread"]["value"]), counted["registers"])
    warps = counted["warp_instructions"]
    instructions = sum(x["smsp__inst_executed.sum"]["value"] for x in launches)
    yield f"{instructions / (sum(warps.values()) - warps['move']):.2f}"
    yield f"{sum(x[CONFLICTS]['value'] for x in launches):,.0f}"
    yield f"{counted['turns'] - counted['least_turns']:,}"
    yield f"{counted['phased_turns'] - counted['least_turns']:,}"


def _base(kernel: str) -> str:
    """The base name, such as ``tiled_kernel``, of an instance named by Nsight or by its symbol."""
    found = re.match(r"(?:capsedge_)?(\w+?_kernel)(?:_|\b)", kernel)
    return found[1] if found else kernel


def _both(hardware: object, ptx: object) -> str:
    return str(hardware) if hardware == ptx else f"{hardware} (PTX: {ptx})"
