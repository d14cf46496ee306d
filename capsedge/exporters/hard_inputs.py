"""Which hard inputs a user's module takes: one that it fails on itself says nothing about the file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.checks import Case, drawn_within
from capsedge.exporters.user_code import first_line, line_of

_NOT_FINITE = "it gives values that are NaN or infinite"


def taken(
    module: nn.Module, cases: Sequence[Case], example: Sequence[Tensor], batches: Sequence[int]
) -> tuple[list[Case], tuple[str, ...]]:
    """The cases that the module takes, and what to say of the others.

    Each kind is tried at the smallest batch, and everything where one is refused. Inputs within the range of
    the example, position by position, then stand in for those.

    Args:
        cases: of `checks.input_cases`, named ``kind, batch n``.
        example: the user's.

    Raises:
        UnsupportedModelError: it takes none of them.
    """
    smallest = min(len(tensors[0]) for _, tensors in cases)
    refused = {n: w for n, t in cases if len(t[0]) == smallest and (w := _refusal(module, t))}
    if not refused:
        return list(cases), ()
    refused = {name: why for name, tensors in cases if (why := _refusal(module, tensors))}
    generator = torch.Generator().manual_seed(3)
    standing_in: list[Case] = [
        (f"within your example, batch {n}", [drawn_within(x, n, generator) for x in example])
        for n in batches
    ]
    kept = [(name, tensors) for name, tensors in cases if name not in refused]
    for name, tensors in standing_in:
        why = _refusal(module, tensors)
        if not why:
            kept.append((name, tensors))
        elif not kept:
            raise UnsupportedModelError(
                "There is no input to compare the file with PyTorch on.",
                f"On every input that was tried, the example's own range included, the module fails: {why}",
                "Give inputs that it takes: --example inputs.npz, an array for each input, batch first.",
            )
    kinds = ", ".join(dict.fromkeys(name.partition(",")[0] for name in refused))
    why = next(iter(refused.values()))
    return kept, (
        f"the module itself does not take these hard inputs, which were left out: {kinds} ({why})",
    )


def _refusal(module: nn.Module, tensors: Sequence[Tensor]) -> str:
    """Why the module does not take an input, with the user's line; empty where it does."""
    try:
        with torch.no_grad():
            outputs = module(*tensors)
    except Exception as error:  # of the user's code: any kind
        where = line_of(error)
        said = f"{type(error).__name__}: {first_line(error)}"
        return f"{said}; {where}" if where else said
    finite = all(torch.isfinite(v).all() for v in outputs if v.is_floating_point())
    return "" if finite else _NOT_FINITE
