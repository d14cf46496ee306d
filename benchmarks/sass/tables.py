"""Counts and bounds as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import replace_between
from benchmarks.sass.kinds import KINDS

BEGIN, END = "<!-- cuda-static:begin -->", "<!-- cuda-static:end -->"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def residence_table(layers: dict[str, Any]) -> str:
    """Registers, memory and residence of each kernel of each layer."""
    header = [
        *("layer", "kernel", "launches", "blocks", "threads", "registers", "spilled B"),
        *("shared B", "blocks per SM", "limited by", "KB per image"),
    ]
    rows = []
    for layer, entry in layers.items():
        for row in entry["kernels"]:
            x, y = row["grid"]
            rows.append(
                [
                    *(layer, f"`{row['kernel']}`", row["launches"], x * y, row["threads"]),
                    *(row["registers"], row["spill_bytes"], row["shared_bytes"]),
                    *(row["resident_blocks"], row["limited_by"]),
                    f"{row['global_bytes_per_image'] / 1e3:.0f}",
                ]
            )
    return table(header, rows)


def slots_table(layers: dict[str, Any]) -> str:
    """Slots per vote and pass of each kernel of each layer, by kind."""
    header = ["layer", "kernel", *KINDS, "all", "staging %", "all division"]
    rows = []
    for layer, entry in layers.items():
        for row in entry["kernels"]:
            slots = (f"{row['slots_per_vote'][kind]:.1f}" for kind in KINDS)
            rows.append(
                [
                    *(layer, f"`{row['kernel']}`", *slots, f"{row['slots_per_vote_total']:.1f}"),
                    *(f"{100 * row['staging_share']:.0f}", f"{row['division_slots_per_vote']:.1f}"),
                ]
            )
    return table(header, rows)


def bound_table(bounds: Sequence[dict[str, Any]]) -> str:
    """Bounds and rooflines in milliseconds."""
    header = [
        "device",
        "layer",
        "issue",
        "FMA",
        "shared",
        "DRAM",
        "bound, ms",
        "roofline, ms",
        "ratio",
    ]
    keys = [f"{name}_ms" for name in ("issue", "fma", "shared", "dram", "total", "roofline")]
    rows = [
        [b["device"], b["layer"], *(f"{b[key]:.3g}" for key in keys), f"{b['ratio']:.1f}"]
        for b in bounds
    ]
    return table(header, rows)


def markdown(made: dict[str, Any]) -> str:
    """All tables of a document."""
    parts = [
        f"Compiled by {made['compiler']}.",
        "## Bounds (estimates)",
        bound_table(made["bounds"]),
    ]
    for architecture, entry in made["architectures"].items():
        sizes = sorted({layer["multiprocessors"] for layer in entry["layers"].values()})
        capability = f"{architecture[:-1]}.{architecture[-1]}"
        parts += [
            f"## Compute capability {capability}, {sizes[0]} multiprocessors",
            residence_table(entry["layers"]),
            "Slots per vote and pass:",
            slots_table(entry["layers"]),
        ]
    return "\n\n".join(parts)


def write_page(page: Path, made: dict[str, Any]) -> None:
    """Put the tables between the page's markers."""
    replace_between(page, BEGIN, END, f"\n{markdown(made)}\n")
