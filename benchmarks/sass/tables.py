"""Counts and bounds as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.sass.devices import DEVICES
from benchmarks.sass.kinds import KINDS

# The share of the rate that bounds a kernel that it is expected to reach, and the gap between two kernels of
# a CUDA graph: assumptions until the first day with a GPU.
ISSUE_REACHED, DRAM_REACHED, LAUNCH_MICROSECONDS = 0.5, 0.8, 2.0
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


def heaviest(layer: dict[str, Any]) -> dict[str, Any]:
    """The row of the kernel that issues most for a layer."""
    rows: list[dict[str, Any]] = layer["kernels"]
    return max(rows, key=lambda row: float(row["warp_instructions"]))


def summary(made: dict[str, Any]) -> dict[str, Any]:
    """What later versions are compared with: the counts of all kernels of a layer, and the bounds.

    The first kernels were one per layer, but for small ones, which are not in their figures.
    """
    found: dict[str, Any] = {"layers": {}, "bounds": {}}
    for architecture, entry in made["architectures"].items():
        for layer, counts in entry["layers"].items():
            rows = counts["kernels"]
            slots = sum(row["slots_per_vote_total"] for row in rows)
            staging = sum(row["slots_per_vote"]["staging"] for row in rows)
            found["layers"][f"{architecture}: {layer}"] = {
                "registers": max(row["registers"] for row in rows),
                "slots_per_vote_total": slots,
                "staging_share": staging / slots,
                "division_slots_per_vote": sum(row["division_slots_per_vote"] for row in rows),
            }
    for row in made["bounds"]:
        found["bounds"][f"{row['device']}: {row['layer']}"] = {
            "ms": row["total_ms"],
            "ratio": row["ratio"],
        }
    return found


def _change(before: float, now: float, digits: str = ".0f") -> str:
    """Two figures with an arrow, or one that has not changed."""
    old, new = format(before, digits), format(now, digits)
    return new if old == new else f"{old} → {new}"


def comparison_tables(made: dict[str, Any]) -> str:
    """Counts and bounds of the first kernels and of these."""
    before, now = made["before"], summary(made)
    counts = []
    for name, new in now["layers"].items():
        old, (architecture, layer) = before["layers"][name], name.split(": ")
        counts.append(
            [
                f"{architecture[:-1]}.{architecture[-1]}",
                layer,
                _change(old["registers"], new["registers"]),
                _change(old["slots_per_vote_total"], new["slots_per_vote_total"]),
                _change(100 * old["staging_share"], 100 * new["staging_share"]),
                _change(old["division_slots_per_vote"], new["division_slots_per_vote"], ".1f"),
            ]
        )
    bounds = []
    for name, new in now["bounds"].items():
        old = before["bounds"][name]
        bounds.append(
            [
                *name.split(": "),
                _change(old["ms"], new["ms"], ".3g"),
                _change(old["ratio"], new["ratio"], ".1f"),
            ]
        )
    header = [
        "capability",
        "layer",
        "registers",
        "slots per vote and pass",
        "staging %",
        "division",
    ]
    return "\n\n".join(
        [table(header, counts), table(["device", "layer", "bound, ms", "of the roofline"], bounds)]
    )


def page(made: dict[str, Any]) -> str:
    """The tables of the page, the comparison first."""
    return f"## First kernels and these\n\n{comparison_tables(made)}\n\n{markdown(made)}"


def expectations(made: dict[str, Any]) -> str:
    """What to expect of each layer: the bound at the share of the rate that is reached, and the launches."""
    architectures = {device.name: str(device.architecture) for device in DEVICES}
    names = {"issue": "issue slots", "fma": "FMA", "shared": "shared memory", "dram": "DRAM"}
    rows = []
    for row in made["bounds"]:
        layer = made["architectures"][architectures[row["device"]]]["layers"][row["layer"]]
        _, most = max((float(row[f"{name}_ms"]), name) for name in names)
        reached = DRAM_REACHED if most == "dram" else ISSUE_REACHED
        expected = row["total_ms"] / reached + 1e-3 * LAUNCH_MICROSECONDS * row["launches"]
        rows.append(
            [
                *(row["device"], row["layer"], f"`{heaviest(layer)['kernel']}`", names[most]),
                *(f"{row['roofline_ms']:.3g}", f"{row['total_ms']:.3g}", row["launches"]),
                f"{expected:.2g}",
            ]
        )
    header = [
        "device",
        "layer",
        "most of it in",
        "limited by",
        "roofline, ms",
        "bound, ms",
        "launches",
    ]
    return table([*header, "expected, ms"], rows)
