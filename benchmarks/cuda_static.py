"""The CUDA kernels counted without a GPU: what the compiler emits, and the time that it bounds.

    python -m benchmarks.cuda_static                      # compute capabilities 8.7, 8.9, 9.0 and 12.0
    python -m benchmarks.cuda_static --arch 87 --layers dynamic --json counts.json
    python -m benchmarks.cuda_static --write              # docs/benchmarks/cuda-static.json and the pages

Needs nvcc, nvdisasm (``pip install nvidia-cuda-nvdisasm``), g++ and binutils. ``kernels.cu`` is compiled to
a cubin for each architecture, which takes a minute or two and is cached in build/cuda-static by the digest
of the sources; the launches of a layer are those that the planner makes. All times are estimates.

Method. nvdisasm lists a kernel's instructions. A walk executes those integer instructions that branches,
predicates and addresses depend on, for 32 lanes and with the arguments of the launch, and counts every
instruction on its way: loops turn as often as they would on the GPU. It takes the first block of a grid,
and all warps of it, or the first and the last one where a warp issues more than 20,000 instructions.
Addresses are calculated for the first 40,000 instructions of a warp and extrapolated: the sectors of 32
bytes that a request touches in global memory, and the turns of the 32 banks that it takes in shared memory.
A slot is the place of one lane in one issued instruction, whether the lane is active or not.

Kinds of instructions: staging only brings data from global into shared memory, its divisions included;
arithmetic is floating point; load reads operands from any memory; division is what only the division of
integers needs (reciprocals and high products, without corrections); other is addresses, indices and
control.

What this cannot know: how long a warp waits for memory, for other warps or for a busy unit; hits in the
first-level cache; clocks under load; branches that depend on data, which count as not taken, or as taken
where they skip a subroutine (the JSON has their number).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import operators
from benchmarks.common import replace_between
from benchmarks.operators import Layer
from benchmarks.sass import tables
from benchmarks.sass.bound import LANES, Bound, bound, work_of
from benchmarks.sass.cubin import ROOT, compiler_version, kernels
from benchmarks.sass.devices import DEVICES, MULTIPROCESSORS, Device
from benchmarks.sass.kinds import KINDS
from benchmarks.sass.launches import Launch, launches_of
from benchmarks.sass.measure import Count, count, resident_blocks
from capsedge.errors import CapsedgeError

PAGE = ROOT / "docs" / "benchmarks" / "cuda-static.md"
PLAN = ROOT / "docs" / "explanation" / "first-gpu-day.md"
LAYERS: dict[str, Callable[[], Layer]] = {
    "dynamic, B=128": lambda: operators._dynamic("dynamic", 128, 1152, 10, 8, 16),
    "dynamic, B=1": lambda: operators._dynamic("dynamic", 1, 1152, 10, 8, 16),
    "EM, B=32": lambda: operators._em("EM", 32, 16, 3, 2, 32),
    "EM, B=1": lambda: operators._em("EM", 1, 16, 3, 2, 32),
    "attention, B=32": lambda: operators._attention("attention", 32, 16, 32, 3, 2, 32),
    "attention, B=1": lambda: operators._attention("attention", 1, 16, 32, 3, 2, 32),
}
Counted = list[tuple[Launch, Count]]


def counted(device: Device, layer: Layer) -> Counted:
    """The launches of a layer on a device, each with what one of its blocks does.

    Raises:
        CapsedgeError: a tool is missing or fails.
    """
    launches = launches_of(layer, device.multiprocessors, clusters=device.clusters)
    return [(launch, count(device.architecture, launch)) for launch in launches]


def kernel_row(architecture: int, layer: Layer, own: Counted) -> dict[str, Any]:
    """Counts of one kernel, added up over its launches for a layer.

    Slots are per vote, of all passes; bytes per image are those that all requests of warps touch.
    """
    work, images = work_of(layer), len(next(iter(layer.inputs.values())))
    first = own[0][0]
    kernel = kernels(architecture)[first.kernel]
    blocks, limit = resident_blocks(kernel, first.threads, first.shared)

    def summed(value: Callable[[Count], float]) -> float:
        return sum(launch.blocks * value(made) for launch, made in own)

    per_vote = LANES / work.made
    slots = {
        kind: per_vote * sum(launch.blocks * made.slots[kind] for launch, made in own)
        for kind in KINDS
    }
    total = sum(slots.values())
    return {
        "kernel": first.kernel,
        "launches": len(own),
        "grid": list(first.grid),
        "threads": first.threads,
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "shared_bytes": first.shared + kernel.shared,
        "resident_blocks": blocks,
        "limited_by": limit,
        "slots_per_vote": {kind: round(value, 3) for kind, value in slots.items()},
        "slots_per_vote_total": round(total, 2),
        "warp_instructions": round(summed(lambda made: made.issued)),
        "staging_share": round(slots["staging"] / total, 4),
        "division_slots_per_vote": round(per_vote * summed(lambda made: made.division), 3),
        "global_bytes_per_image": round(summed(lambda made: made.global_bytes) / images),
        "undecided_branches": sum(made.undecided for _, made in own),
    }


def layer_entry(device: Device, layer: Layer, launches: Counted) -> dict[str, Any]:
    """Counts of a layer, a row for each kernel in the order of its first launch."""
    names = dict.fromkeys(launch.kernel for launch, _ in launches)
    own = ([(x, made) for x, made in launches if x.kernel == name] for name in names)
    return {
        "multiprocessors": device.multiprocessors,
        "kernels": [kernel_row(device.architecture, layer, each) for each in own],
    }


def resources(architecture: int) -> dict[str, dict[str, int]]:
    """Registers, spills, stack and static shared memory of every kernel of an architecture."""
    return {
        name: {
            "registers": kernel.registers,
            "spill_bytes": kernel.spills,
            "stack_bytes": kernel.stack,
            "shared_bytes": kernel.shared,
        }
        for name, kernel in sorted(kernels(architecture).items())
    }


def bound_row(device: Device, layer: str, launches: int, found: Bound) -> dict[str, Any]:
    """A bound in milliseconds."""
    names = ("issue", "fma", "shared", "dram", "total", "roofline")
    times = {f"{name}_ms": round(1e3 * getattr(found, name), 5) for name in names}
    given = {"device": device.name, "layer": layer, "launches": launches}
    return {**given, **times, "ratio": round(found.ratio, 2)}


def document(architectures: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """All counts and bounds of some layers, as JSON has them.

    Raises:
        CapsedgeError: a tool is missing or fails.
    """
    made: dict[str, Any] = {"compiler": compiler_version(), "architectures": {}, "bounds": []}
    for architecture in architectures:
        entry: dict[str, Any] = {"kernels": resources(architecture), "layers": {}}
        made["architectures"][str(architecture)] = entry
        devices = [d for d in DEVICES if d.architecture == architecture]
        for name in names:
            layer, done = LAYERS[name](), dict[int, Counted]()
            for device in devices:
                if device.multiprocessors not in done:
                    print(f"{name}, {device.name}", file=sys.stderr)
                    done[device.multiprocessors] = counted(device, layer)
                launches = done[device.multiprocessors]
                entry["layers"].setdefault(name, layer_entry(device, layer, launches))
                found = bound(device, work_of(layer), launches)
                made["bounds"].append(bound_row(device, name, len(launches), found))
    return made


def write(made: dict[str, Any]) -> None:
    """The figures and both pages; what the first figures were is kept, to compare with."""
    figures = PAGE.with_suffix(".json")
    known = json.loads(figures.read_text()) if figures.is_file() else {}
    made = {**made, "before": known.get("before") or tables.summary(made)}
    figures.write_text(json.dumps(made, indent=1) + "\n")
    replace_between(PAGE, tables.BEGIN, tables.END, f"\n{tables.page(made)}\n")
    replace_between(PLAN, tables.BEGIN, tables.END, f"\n{tables.expectations(made)}\n")


def matches(part: str, name: str) -> bool:
    """Whether an argument is a layer's name, or a part of it and no other layer's name."""
    return part == name or (part in name and part not in LAYERS)


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print and write. Returns 1 if a tool is missing or fails, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", type=int, nargs="+", choices=MULTIPROCESSORS, default=list(MULTIPROCESSORS)
    )
    parser.add_argument(
        "--layers", nargs="+", default=[""], help=f"parts of names, of: {'; '.join(LAYERS)}"
    )
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--write", action="store_true", help="write the figures and tables in docs")
    given = parser.parse_args(argv)
    names = [name for name in LAYERS if any(matches(part, name) for part in given.layers)]
    if not names:
        parser.error(f"no layer is called so; there are {'; '.join(LAYERS)}")
    if given.write and (names != list(LAYERS) or given.arch != list(MULTIPROCESSORS)):
        parser.error("--write takes all architectures and layers")
    if given.json and not given.json.resolve().parent.is_dir():
        parser.error(f"there is no folder {given.json.resolve().parent}")
    try:
        made = document(given.arch, names)
    except CapsedgeError as error:
        print(error, file=sys.stderr)
        return 1
    print(tables.markdown(made))
    if given.json:
        given.json.write_text(json.dumps(made, indent=1) + "\n")
    if given.write:
        write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
