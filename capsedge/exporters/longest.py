"""Find the longest history that a network takes, such as the size of its table of positions or of its logits.

A free axis is captured with that limit, and the file states it, so that runtimes can explain why a longer
input is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from capsedge.exporters.subject import Subject

LENGTH = "L"
_TRIED = (2, 4, 8)  # times the length of the example
_MOST = 4096  # largest size tried of the module's tensors; beyond it, one row may be slow


def length_names(example: Sequence[Tensor], free_axes: Sequence[Sequence[int]]) -> dict[int, str]:
    """The names of the free dimensions besides the batch, by their sizes in the example: L, L2, ...

    Axes of the same size share one dimension.
    """
    names: dict[int, str] = {}
    for x, axes in zip(example, free_axes, strict=bool(free_axes)):
        for axis in axes:
            names.setdefault(int(x.shape[axis]), f"{LENGTH}{len(names) + 1 if names else ''}")
    return names


def longest_lengths(subject: Subject) -> dict[str, int]:
    """The largest size of each free dimension at which the module runs, by name; unlimited ones are omitted.

    Lengths up to eight times the example's are tried on one row, and those above the sizes of the module's
    tensors, since a table of positions may be longer.
    """
    limits = {}
    tensors = (*subject.module.parameters(), *subject.module.buffers())
    tables = sorted({n for x in tensors for n in x.shape if n <= _MOST})
    for size, name in length_names(subject.example, subject.free_axes).items():
        tried = [times * size for times in _TRIED]
        good, bad = size, 0
        for length in (*tried, *(n + 1 for n in tables if n >= tried[-1])):
            if not _runs(subject, size, length):
                bad = length
                break
            good = length
        if not bad:
            continue
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if _runs(subject, size, middle) else (good, middle)
        limits[name] = good
    return limits


def _runs(subject: Subject, size: int, length: int) -> bool:
    """Whether the module runs with axes of the example's size at another length."""
    try:
        with torch.no_grad():
            subject.module(
                *resized([x[:1] for x in subject.example], subject.free_axes, length, size)
            )
    except Exception:  # the author's code may raise anything
        return False
    return True


def resized(
    tensors: Sequence[Tensor],
    free_axes: Sequence[Sequence[int]],
    length: int,
    size: int | None = None,
) -> list[Tensor]:
    """Tensors with free axes, or axes of a given size, cut or repeated from the start to another length."""
    found = list(tensors)
    for n, axes in enumerate(free_axes):
        for axis in axes:
            own = found[n].shape[axis]
            if size in (None, own):
                found[n] = found[n].index_select(axis, torch.arange(length) % own)
    return found


def longest_of_inputs(
    subject: Subject, program: torch.export.ExportedProgram
) -> tuple[tuple[int, ...], ...]:
    """For each input, the largest size of each axis that a captured program takes (0: any).

    Empty if nothing is limited.
    """
    names = program.graph_signature.user_inputs
    shapes = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder"}
    found = (
        tuple(
            tuple(_most(size, program) if k in axes else 0 for k, size in enumerate(shapes[name]))
            for name, axes in zip(names, subject.free_axes, strict=True)
        )
        if subject.free_axes
        else ()
    )
    return found if any(map(any, found)) else ()


def _most(size: int | torch.SymInt, program: torch.export.ExportedProgram) -> int:
    """The largest value of a dimension of a program; 0 for any."""
    if isinstance(size, int):
        return 0
    limits = program.range_constraints.get(size.node.expr)
    upper = None if limits is None else limits.upper
    return int(upper) if upper is not None and upper.is_Integer else 0
