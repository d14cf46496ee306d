"""Routing layers in torch on an NVIDIA GPU: with the package's CUDA kernels and without, in one run.

    python -m benchmarks.gpu_ops -o ops.json
    python -m benchmarks.gpu_ops --batches 1 --filter Table --compile max-autotune

The layers are those of `gpu`. The kernels' results are compared with eager torch before they are timed; if
one differs, or an operator ran in torch after all, the exit code is 1. TF32 is off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu import (
    COMPILED,
    EAGER,
    GRAPH,
    TOLERANCE,
    compiled,
    graphed,
    guarded,
    header,
    layers,
    on_torch,
)
from benchmarks.operators import Layer
from capsedge.errors import CapsedgeError
from capsedge.runtime.files.writing import write_bytes
from tests.conformance.backends import Torch
from tests.conformance.cases import OUTPUTS, Case

FUSED, FUSED_GRAPH = "torch, CUDA kernels", "torch, CUDA kernels, CUDA graph"
PEERS = (FUSED, FUSED_GRAPH, EAGER, GRAPH, COMPILED)


def on_kernels(call: Callable[[], Any]) -> Callable[[], Any]:
    """A torch call within `capsedge.ops.fused`.

    Raises:
        RuntimeError: by the call: an operator ran in torch; the message says which, and why.
    """
    import torch

    from capsedge.models import ops

    def run() -> Any:
        with torch.no_grad(), ops.fused() as ran:
            found = call()
        if ran.others or not ran.kernels:
            raise RuntimeError(f"not on CUDA kernels: {ran.others}")
        return found

    return run


def difference(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> float:
    """The largest, in units of the tolerance."""
    limit = TOLERANCE["float32"]
    pairs = zip(found, wanted, strict=True)
    return max(float(((x - w).abs() / (limit + limit * w.abs())).max()) for x, w in pairs)


def row(batch: int, layer: Layer, mode: str) -> dict[str, Any]:
    """One layer measured with every peer.

    Args:
        mode: mode of `torch.compile`, which is left out if empty.
    """
    import torch

    case = Case(layer.operator, {}, layer.attributes)
    tensors = {name: torch.from_numpy(x).cuda() for name, x in layer.inputs.items()}

    def call() -> tuple[Any, ...]:
        return Torch._call(case, tensors)[: len(OUTPUTS[layer.operator])]

    def fused(as_graph: bool) -> dict[str, Any]:
        run = on_kernels(call)
        with torch.no_grad():
            worst = difference(run(), call())
        if not worst <= 1:
            return {"failed": f"differs from torch by {worst:.3g} times the tolerance"}
        return {**on_torch(graphed(run) if as_graph else run), "compared": worst}

    times = {
        FUSED: guarded(lambda: fused(False)),
        FUSED_GRAPH: guarded(lambda: fused(True)),
        EAGER: guarded(lambda: on_torch(call)),
        GRAPH: guarded(lambda: on_torch(graphed(call))),
    }
    if mode:
        times[COMPILED] = guarded(lambda: compiled(call, mode))
    return {"layer": layer.name, "operator": layer.operator, "batch": batch, "times": times}


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of milliseconds."""
    lines = [f"| layer | batch | {' | '.join(PEERS)} |", "|---" * (2 + len(PEERS)) + "|"]
    for found in rows:
        times = [found["times"].get(peer, {"failed": "-"}) for peer in PEERS]
        cells = [f"{t['median_ms']:.4f}" if "median_ms" in t else t["failed"] for t in times]
        lines.append(f"| {found['layer']} | {found['batch']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the table; if requested, write JSON after every row, so that an interrupted run loses nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write everything there too")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--filter", default="", help="only layers with this in their name")
    parser.add_argument(
        "--compile", default="", metavar="MODE", help="torch.compile too, e.g. reduce-overhead"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    document = {**header(), "operators": rows}
    for batch, layer in layers([int(b) for b in options.batches.split(",")]):
        if options.filter not in layer.name:
            continue
        rows.append(row(batch, layer, options.compile))
        print(f"{layer.name}, batch {batch}: {rows[-1]['times']}", file=sys.stderr, flush=True)
        if options.output:
            write_bytes(options.output, (json.dumps(document, indent=1) + "\n").encode())
    print(markdown(rows))
    wrong = [r["layer"] for r in rows for peer in PEERS[:2] if "failed" in r["times"][peer]]
    if wrong:
        print(f"the kernels fail for {', '.join(dict.fromkeys(wrong))}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CapsedgeError as error:
        sys.exit(str(error))
