"""Check that two runs of a user's module on the same input agree.

The results of a module that draws random numbers cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from capsedge.errors import UnsupportedModelError
from capsedge.models.user.code import Draws, lines_with

Outputs = Mapping[str, Tensor]
Run = Callable[[Sequence[Tensor]], Outputs]

_ROUNDING = 1e-4  # relative to the largest magnitude: differences that thread order alone can cause
_REDRAWN = 3  # runs with other random numbers
_LINES = 3
_ELSEWHERE = ("np.random", "numpy.random", "random.", "default_rng", "self.rng", "urandom", "time.")
_KEEP = (
    "Draw the numbers once, in __init__, and keep them: self.register_buffer('b', "
    "torch.randn(...)); or make them an input of forward; or start from a constant such as "
    "torch.zeros(...)."
)
_DROPOUT = (
    "Draw only during training: F.dropout(x, p, training=self.training), or nn.Dropout, which "
    "model.eval() switches off."
)
_GUMBEL = "Draw only during training: if self.training: F.gumbel_softmax(...), else softmax(logits / tau)."


def check_repeatable(module: nn.Module, run: Run, cases: Iterable[Sequence[Tensor]]) -> None:
    """Refuse a module whose result is not a function of its input.

    PyTorch's random operations are recognized by their tag, whoever calls them, so numbers from a generator
    that the code seeds are found as well. They are replaced by others, and the result must not change.

    Args:
        module: in the mode in which it is used; its classes and state explain the error.
        run: gives its outputs by name.
        cases: inputs of it.

    Raises:
        UnsupportedModelError: it draws random numbers, or keeps state between runs; the error names the
            user's line.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for inputs in cases:
            before = {name: t.clone() for name, t in module.state_dict().items()}
            with Draws() as draws:
                first = _kept(run(_copies(inputs)))
            second = _kept(run(_copies(inputs)))
            off = _difference(first, second)
            if off is not None and (draws.lines or draws.names or off[1] > _ROUNDING):
                raise _differing(module, draws, off, before)
            for stream in range(_REDRAWN if draws.names else 0):
                with Draws(stream):
                    other = _kept(run(_copies(inputs)))
                off = _difference(first, other)
                if off is not None:
                    raise _seeded(draws, off)


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the inputs, since a module may write into them."""
    return [x.clone() for x in inputs]


def _kept(outputs: Outputs) -> dict[str, Tensor]:
    """Copies of outputs, since a module may return tensors that it changes in the next run."""
    return {name: t.detach().clone() for name, t in outputs.items()}


def _difference(first: Outputs, second: Outputs) -> tuple[str, float, float, float] | None:
    """The output that differs most: its name, relative difference, difference and largest magnitude."""
    found = []
    for name, a in first.items():
        b = second.get(name)
        if b is None or a.shape != b.shape:
            return name, float("inf"), float("inf"), 0.0
        x, y = (t.nan_to_num().double() for t in (a, b))
        if x.numel() and not torch.equal(x, y):
            off, size = float((x - y).abs().max()), float(x.abs().max())
            found.append((name, off / max(size, 1e-30), off, size))
    return max(found, key=lambda each: each[1], default=None)


def _differing(
    module: nn.Module,
    draws: Draws,
    off: tuple[str, float, float, float],
    before: Mapping[str, Tensor],
) -> UnsupportedModelError:
    """The error for two runs that differ."""
    name, _, difference, size = off
    why = f"Output '{name}' differs by {difference:.3g} between two runs (its largest value is {size:.3g})."
    if draws.names:
        what = (
            "The module draws random numbers: two runs on the same input differ, so a file cannot "
            "be compared with it."
        )
        return UnsupportedModelError(what, why, _advice(draws), details=_called(draws))
    after = module.state_dict()
    changed = [n for n, t in before.items() if n in after and not torch.equal(t, after[n])]
    if changed:
        why += f" Each run changes the buffer '{changed[0]}'."
    elsewhere = () if changed else _ELSEWHERE
    lines = next((found for words in elsewhere if (found := lines_with(module, words))), [])
    return UnsupportedModelError(
        "Two runs of the module on the same input differ, so a file cannot be compared with it.",
        why,
        _KEEP
        if not changed
        else "Let forward change its state only during training (if self.training: ...).",
        details=lines,
    )


def _seeded(draws: Draws, off: tuple[str, float, float, float]) -> UnsupportedModelError:
    """The error for numbers that are the same in each run because the code seeds their generator."""
    name, _, difference, size = off
    return UnsupportedModelError(
        "The module draws random numbers, which a file cannot reproduce: it has no PyTorch generator.",
        "Two runs agree only because the code seeds the generator; with other numbers, output "
        f"'{name}' differs by {difference:.3g} (its largest value is {size:.3g}).",
        _advice(draws),
        details=_called(draws),
    )


def _called(draws: Draws) -> list[str]:
    """The user's lines that draw; the operations if no line is known."""
    return draws.lines[:_LINES] or [f"It calls {', '.join(dict.fromkeys(draws.names))}."]


def _advice(draws: Draws) -> str:
    code = " ".join(draws.lines).lower()
    if "gumbel" in code:
        return _GUMBEL
    return _DROPOUT if "drop" in code else _KEEP
