"""Flash and RAM that a network needs, layer by layer, and whether they fit a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.errors import UsageError
from capsedge.exporters.c.source import CLibrary, steps_by_layer
from capsedge.runtime.files.text import format_bytes, printable

CODE_BYTES = 8 << 10  # of helpers and small steps, in the upper limit for the compiled code
STEP_BYTES = 1 << 10  # of a step that calls a kernel, which the compiler may copy there


def code_bound(library: CLibrary) -> int:
    """Upper limit for the code of ``run`` by gcc -O2, and labels; grows with the layers and the batch."""
    steps = sum("caps_" in step.code for step in library.run.program.steps)
    labels = sum(len(label.encode()) + 1 + 8 for label in library.labels)  # texts and pointers
    return CODE_BYTES + STEP_BYTES * steps + labels


def needs(library: CLibrary) -> dict[str, dict[str, int]]:
    """Bytes of flash and of RAM that ``run`` needs, by part; with the decoder only if the program calls it.

    The build files of the folder let the linker leave out what is not called (`folder`).
    """
    return {
        "flash": {"constants": library.run_bytes, "code at most": code_bound(library)},
        "ram": {
            "arena": library.arena,
            "input" if len(library.inputs) == 1 else "inputs": library.input_bytes,
            "outputs": library.output_bytes,
        },
    }


def parts_text(parts: Mapping[str, int]) -> str:
    """``580.6 KiB (constants 564.6 KiB, code at most 16.0 KiB)``."""
    each = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    return f"{format_bytes(sum(parts.values()))} ({each})"


def memory_rows(name: str, memory: Mapping[str, int]) -> list[tuple[str, str]]:
    """What a folder's description says of memory, as rows of a table.

    Args:
        name: prefix of the symbols.
        memory: the description's ``memory``.
    """
    constants, arena = memory["constant_bytes"], memory["arena_bytes"]
    rows = [("constants", f"{format_bytes(constants)} (flash)")]
    if memory["decoder_bytes"]:
        more = format_bytes(memory["decoder_bytes"])
        rows.append(("decoder", f"{more} more where {printable(name)}_reconstruct is called"))
    rows.append(("arena", f"{format_bytes(arena)} (RAM)"))
    code, caller = memory["code_bound"], memory["input_bytes"] + memory["output_bytes"]
    flash, ram = format_bytes(constants + code), format_bytes(arena + caller)
    text = f"{flash} of flash with at most {format_bytes(code)} of code; "
    text += f"{ram} of RAM with {format_bytes(caller)} of input and outputs"
    return [*rows, ("in all", text)]


def excess(library: CLibrary, fit: Mapping[str, int]) -> dict[str, int]:
    """Bytes by which a network needs more than allowed, for each kind of memory that it has too little of."""
    needed = needs(library)
    by = {kind: sum(needed[kind].values()) - most for kind, most in fit.items()}
    return {kind: more for kind, more in by.items() if more > 0}


def check_fit(library: CLibrary, fit: Mapping[str, int], source: Path) -> None:
    """Refuse a network that needs more flash or RAM than allowed.

    Raises:
        UsageError: it does not fit; the message lists the largest layers and what would help.
    """
    needed, over = needs(library), excess(library, fit)
    if not over:
        return
    lines = [
        f"{kind}: {parts_text(needed[kind])}; {format_bytes(by)} more than {format_bytes(fit[kind])}"
        for kind, by in over.items()
    ]
    table = layer_table(library)
    quantized = any(array.dtype == np.int8 for array in library.constants.arrays.values())
    # It makes weights and feature maps four times smaller, so it helps with both kinds of memory.
    help_with = [] if quantized else ["quantize it to INT8 (`capsedge quantize`)"]
    if library.batch > 1:
        help_with.insert(0, "build it for one image a call (`--batch 1`)")
    if "flash" in over:
        most = max(table, key=lambda row: row["constant_bytes"])
        lines.append(
            f"most flash: {most['node']} ({most['operator']}), {format_bytes(most['constant_bytes'])}"
        )
        if quantized:
            help_with.append("prune it (`capsedge prune`)")
    if "ram" in over:
        most = max(table, key=lambda row: row["live_bytes"])
        lines.append(
            f"most RAM: {most['node']} ({most['operator']}), {format_bytes(most['live_bytes'])}"
        )
        help_with.append("take a network with smaller or fewer feature maps")
    advice = " or ".join(help_with)
    raise UsageError(
        f"{source} does not fit.",
        f"{'; '.join(lines)}.",
        f"{advice[0].upper()}{advice[1:]}, or choose another model.",
    )


def layer_table(library: CLibrary) -> list[dict[str, Any]]:
    """A row for every layer of ``run``: what it computes and how much memory it needs."""
    run, rows = library.run, []
    counted: set[str] = set()
    for node, operator, numbers in steps_by_layer(run):
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
