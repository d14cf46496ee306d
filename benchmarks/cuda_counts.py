"""Count what the CUDA kernels' PTX does when it runs, without a GPU, and the bounds on time that follow.

    python -m benchmarks.cuda_counts                       # compute capabilities 8.7, 8.9, 9.0 and 12.0
    python -m benchmarks.cuda_counts --device H100 --layers dynamic --json counts.json
    python -m benchmarks.cuda_counts --write               # docs/benchmarks/cuda-counts.md and .json

Needs nvcc of CUDA 13 and g++. Every thread of every launch is executed (tools/ptx), so counts are exact for
the PTX, grid and data; registers and spills are those that ptxas reports. All times are estimates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import operators
from benchmarks.common import replace_between
from benchmarks.cuda_bounds import DEVICES, LANES, SECTOR, Device, bound, issued, work_of
from benchmarks.operators import Layer
from capsedge.errors import EnvironmentProblem
from tools.ptx import build

PAGE = build.ROOT / "docs" / "benchmarks" / "cuda-counts.md"
BEGIN, END = "<!-- cuda-counts:begin -->", "<!-- cuda-counts:end -->"
LAYERS: dict[str, Callable[[], Layer]] = {
    "dynamic, B=128": lambda: operators._dynamic("dynamic", 128, 1152, 10, 8, 16),
    "dynamic, B=1": lambda: operators._dynamic("dynamic", 1, 1152, 10, 8, 16),
    "EM, B=32": lambda: operators._em("EM", 32, 16, 3, 2, 32),
    "EM, B=1": lambda: operators._em("EM", 1, 16, 3, 2, 32),
    "attention, B=32": lambda: operators._attention("attention", 32, 16, 32, 3, 2, 32),
    "attention, B=1": lambda: operators._attention("attention", 1, 16, 32, 3, 2, 32),
}
Launches = list[Mapping[str, Any]]
COUNTED = (
    "fp32",
    "sectors",
    "turns",
    "phased_turns",
    "least_turns",
    "global_requests",
    "shared_requests",
    "divergent",
)


def plain_name(symbol: str) -> str:
    """The name of a kernel, such as ``tiled_kernel_Sums_4x4x2_f32_f32``."""
    return symbol.removeprefix("capsedge_")


def run_layers(names: Sequence[str]) -> dict[str, Launches]:
    """The launches of each layer, in a process that executes the code instead of a GPU."""
    from tests.native import cuda_library

    executor = build.Executor(Path(os.environ["CAPSEDGE_CUDART"]))
    memory = cuda_library.Gpu()
    library = cuda_library.bind(Path(os.environ["CAPSEDGE_CUDA_LIBRARY"]))
    made = {}
    for name in names:
        layer = LAYERS[name]()
        executor.reset()
        call, outputs = cuda_library.prepare(
            library, memory, layer.operator, layer.attributes, layer.inputs
        )
        call()
        memory.get(outputs[0])
        made[name] = executor.launches()
    return made


def launches_of(device: Device, names: Sequence[str]) -> dict[str, Launches]:
    """What a device of this size launches for each layer.

    Raises:
        EnvironmentProblem: the compiler refuses the kernels.
    """
    own = build.built(device.architecture)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cuda_counts", "--run", *names],
        env={**os.environ, **own.variables(), "CAPSEDGE_PTX_UNCHECKED": "1",
             "CAPSEDGE_PTX_MULTIPROCESSORS": str(device.multiprocessors)},
        cwd=build.ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    made: dict[str, Launches] = json.loads(done.stdout)
    return made


def kernel_row(layer: Layer, own: Launches) -> dict[str, Any]:
    """Counts for one kernel, summed over its launches for a layer.

    Slots, the places for lanes in issued instructions, are per vote over all passes.
    """
    first, work = own[0], work_of(layer)
    summed = {name: sum(launch[name] for launch in own) for name in COUNTED}
    warps = {kind: sum(launch["warps"][kind] for launch in own) for kind in first["warps"]}
    return {
        "kernel": plain_name(first["kernel"]),
        "launches": len(own),
        "grid": first["grid"],
        "cluster": first["cluster"],
        "threads": first["threads"],
        "shared_bytes": first["shared"],
        "registers": first["registers"],
        "spill_bytes": first["spills"],
        "warp_instructions": warps,
        "slots_per_vote": round(LANES * sum(map(issued, own)) / work.made, 2),
        "active_lanes": round(
            sum(sum(launch["lanes"].values()) for launch in own) / LANES / sum(warps.values()), 4
        ),
        **summed,
    }


def document(devices: Sequence[Device], names: Sequence[str]) -> dict[str, Any]:
    """All counts and bounds for some layers, as in the JSON file.

    Raises:
        EnvironmentProblem: the compiler refuses the kernels.
    """
    made: dict[str, Any] = {"compiler": build.version(), "devices": {}, "bounds": []}
    layers = {name: LAYERS[name]() for name in names}
    for device in devices:
        print(device.name, file=sys.stderr)
        entry: dict[str, Any] = {"architecture": device.architecture, "layers": {}}
        made["devices"][device.name] = entry
        for name, launches in launches_of(device, names).items():
            kernels = dict.fromkeys(launch["kernel"] for launch in launches)
            entry["layers"][name] = [
                kernel_row(layers[name], [x for x in launches if x["kernel"] == kernel])
                for kernel in kernels
            ]
            found = bound(device, work_of(layers[name]), launches)
            times = ("issue", "fma", "shared", "dram", "total", "roofline")
            made["bounds"].append(
                {"device": device.name, "layer": name, "launches": len(launches)}
                | {f"{time}_ms": round(1e3 * getattr(found, time), 5) for time in times}
            )
    return made


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def markdown(made: Mapping[str, Any]) -> str:
    """The tables of the page."""
    walked = made.get("walked", {})
    bounds = [
        [row["device"], row["layer"], row["launches"],
         *(f"{row[f'{time}_ms']:.3g}" for time in ("issue", "fma", "shared", "dram", "total")),
         *([f"{walked[key]:.3g}"] if (key := f"{row['device']}: {row['layer']}") in walked else ["-"]),
         f"{row['roofline_ms']:.3g}"]
        for row in made["bounds"]
    ]  # fmt: skip
    parts = [
        f"Compiled by {made['compiler']}.",
        "## Bounds, ms (estimates)",
        table(["device", "layer", "launches", "issue", "FMA", "shared", "DRAM", "bound",
               "bound of the machine code", "roofline"], bounds),
    ]  # fmt: skip
    for name, entry in made["devices"].items():
        rows = [
            [layer, f"`{row['kernel']}`", row["launches"], "x".join(map(str, row["grid"])), row["registers"],
             row["spill_bytes"], row["slots_per_vote"], f"{100 * row['active_lanes']:.0f}",
             f"{row['sectors'] * SECTOR / 1e6:.3g}",
             *(row[name] for name in ("shared_requests", "turns", "phased_turns", "least_turns"))]
            for layer, kernels in entry["layers"].items()
            for row in kernels
        ]  # fmt: skip
        parts += [
            f"## {name}",
            table(["layer", "kernel", "launches", "grid", "registers", "spilled B", "slots per vote",
                   "active lanes %", "global MB", "shared requests", "turns", "turns by phases",
                   "least turns"], rows),
        ]  # fmt: skip
    return "\n\n".join(parts)


def write(made: dict[str, Any]) -> None:
    """Write the page and its figures; bounds computed earlier from the machine code are kept."""
    figures = PAGE.with_suffix(".json")
    known = json.loads(figures.read_text()) if figures.is_file() else {}
    made = {**made, "walked": known.get("walked", {})}
    figures.write_text(json.dumps(made, indent=1) + "\n")
    replace_between(PAGE, BEGIN, END, f"\n{markdown(made)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print and write. Returns 1 if a tool is missing or fails, 2 for invalid arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="", help="part of a name, of: " + "; ".join(d.name for d in DEVICES)
    )
    parser.add_argument("--layers", default="", help=f"part of a name, of: {'; '.join(LAYERS)}")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--write", action="store_true", help="write the figures and tables in docs")
    parser.add_argument("--run", nargs="+", choices=LAYERS, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.run:
        json.dump(run_layers(given.run), sys.stdout)
        return 0
    devices = [device for device in DEVICES if given.device in device.name]
    names = [name for name in LAYERS if given.layers in name]
    if not devices or not names:
        parser.error("no device or no layer is called so")
    if given.write and (len(devices), len(names)) != (len(DEVICES), len(LAYERS)):
        parser.error("--write takes all devices and layers")
    if reason := build.unavailable():
        print(reason, file=sys.stderr)
        return 1
    try:
        made = document(devices, names)
    except EnvironmentProblem as error:
        print(error, file=sys.stderr)
        return 1
    print(markdown(made))
    if given.json:
        given.json.write_text(json.dumps(made, indent=1) + "\n")
    if given.write:
        write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
