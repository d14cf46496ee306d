"""Flash and RAM that a network needs, layer by layer, and whether they fit a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import UsageError
from capsedge.exporters.c.source import Library, layers
from capsedge.runtime.files.text import format_bytes, printable

CODE_BYTES = 16 << 10  # upper limit for the compiled code, in the flash that `--fit` compares


def needs(library: Library) -> dict[str, int]:
    """Bytes of flash (constants and code) and of RAM (arena, input and outputs)."""
    caller = 4 * (
        int(np.prod(library.input_shape)) + sum(output.size for output in library.outputs)
    )
    return {"flash": library.run_bytes + CODE_BYTES, "ram": library.arena + caller}


def check_fit(library: Library, fit: Mapping[str, int], source: Path) -> None:
    """Refuse a network that needs more flash or RAM than allowed.

    Raises:
        UsageError: it does not fit; the message lists the largest layers and what would help.
    """
    needed = needs(library)
    over = {kind: needed[kind] - most for kind, most in fit.items() if needed[kind] > most}
    if not over:
        return
    lines = [
        f"{kind}: {format_bytes(needed[kind])} of {format_bytes(fit[kind])}, {format_bytes(by)} over"
        for kind, by in over.items()
    ]
    table = layer_table(library)
    help_with: list[str] = []
    if "flash" in over:
        most = max(table, key=lambda row: row["constant_bytes"])
        lines.append(
            f"Most flash: {most['node']} ({most['operator']}), {format_bytes(most['constant_bytes'])}"
        )
        quantized = any(array.dtype == np.int8 for array in library.constants.arrays.values())
        help_with.append(
            "prune it (`capsedge prune`)"
            if quantized
            else "quantize it to INT8 (`capsedge quantize`)"
        )
    if "ram" in over:
        most = max(table, key=lambda row: row["live_bytes"])
        lines.append(
            f"Most RAM: {most['node']} ({most['operator']}), {format_bytes(most['live_bytes'])}"
        )
        help_with.append("take a network with smaller or fewer feature maps")
    advice = " or ".join(help_with)
    raise UsageError(
        f"{source} does not fit.",
        f"{'; '.join(lines)}.",
        f"{advice[0].upper()}{advice[1:]}, or choose another model.",
    )


def layer_table(library: Library) -> list[dict[str, Any]]:
    """A row for every layer of ``run``: what it computes and how much memory it needs."""
    run, rows = library.run, []
    counted: set[str] = set()
    for node, operator, numbers in layers(run):
        steps = [run.program.steps[t] for t in numbers]
        names = {n for step in steps for n in step.constants} - counted
        counted |= names
        rows.append(
            {
                "node": printable(node),
                "operator": operator,
                "products": sum(step.products for step in steps),
                "constant_bytes": sum(library.constants.arrays[n].nbytes for n in names),
                "scratch_bytes": max(step.scratch for step in steps),
                "live_bytes": max(run.plan.live[t] for t in numbers),
            }
        )
    return rows
