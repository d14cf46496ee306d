"""The judgement of a hypothesis: on fresh random, structured and hard inputs, against the original nodes.

The original nodes run in FP64 where they can, so that a hypothesis must agree to six digits of every pose, at
every size of the input. Constants of the file are FP32, and routing feeds their rounding back through
exponentials: what a change of the votes by half of FP32's last digit does to the hypothesis is allowed too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from capsedge.graph.recognize.economy import Case, shared_cases
from capsedge.graph.recognize.layouts import Layout
from capsedge.graph.recognize.values import Array, Function
from capsedge.judging.tolerance import NOISE, Tolerance, excess

STRICT = 1e-6  # relative to the size of a pose, in FP64
LOOSE = 2e-5  # in FP32
ROUNDING = 2.0**-24  # of FP32
FLOOR = 1e-25  # below it lies nothing that FP32 can tell from zero
SIZES = (1e-6, 1e-4, 1e-2, 1.0, 3.0, 30.0)


@dataclass(frozen=True)
class Verdict:
    """How far a hypothesis is from the original.

    Attributes:
        excess: largest difference divided by what is allowed; up to 1 is accepted.
        case: the input where it was found.
        undefined: whether the original gave values that are not finite, which were not compared.
    """

    excess: float
    case: str
    undefined: bool = False

    @property
    def accepted(self) -> bool:
        return self.excess <= 1


def hard_votes(shape: tuple[int, ...], seed: int) -> Iterator[tuple[str, Array]]:
    """Named inputs: normal ones of many sizes, uniform, offset, all equal, zero, one spike, a few large."""
    rng = np.random.default_rng(seed)
    for size in SIZES:
        yield f"normal, {size:g}", size * rng.standard_normal(shape)
    yield "uniform", rng.random(shape)
    yield "offset", 0.5 + rng.standard_normal(shape)
    yield "equal", np.full(shape, 0.5)
    yield "zero", np.zeros(shape)
    spike = np.zeros(shape)
    spike.reshape(-1)[spike.size // 2] = 1.0
    yield "spike", spike
    sparse = rng.standard_normal(shape) * (rng.random(shape) < 0.1)
    yield "sparse", 5 * sparse


def is_wide(function: Function, x: Array) -> bool:
    """Whether a function computes in FP64: a change below FP32's resolution changes its result."""
    base, moved = function(x)[0], function(x * (1 + 1e-10))[0]
    return bool(np.any(base != moved))


def poses_last(function: Function, axis: int) -> Callable[[Array], Array]:
    """A function of a graph whose poses lie along an axis, as one of poses along the last."""
    return lambda x: np.moveaxis(function(np.moveaxis(x, -1, axis))[0], axis, -1)


def judge(
    original: Callable[[Array], Array],
    hypothesis: Callable[[Array], Array],
    shape: tuple[int, ...],
    rtol: float = STRICT,
    seed: int = 5,
    *,
    floor: float = FLOOR,
    roles: Layout | None = None,
    ranked: bool = False,
    stop: bool = False,
) -> Verdict:
    """Compare two functions of votes, a pose (the last axis) at a time.

    Args:
        original, hypothesis: give poses in the same form.
        floor: differences up to this size are not counted.
        roles: of the votes ``[n, j, i, p]``, where their places are independent.
        ranked: whether hypotheses are ranked by their excess, which then allows for rounding everywhere.
        stop: whether the first difference ends it, where nothing but acceptance is asked for.
    """
    worst, undefined = Verdict(0.0, ""), False
    for name, x in _cases(shape, roles, seed):
        wanted, found = original(x), hypothesis(x)
        finite = np.isfinite(wanted)
        undefined |= not finite.all()
        share = excess_of(found, wanted, rtol, floor)
        if ranked or not share <= 1:  # what rounding moves is asked only where it matters
            share = excess_of(found, wanted, rtol, floor, _sensitivity(hypothesis, x, found))
        if not share <= worst.excess:
            worst = Verdict(share, name)
        if stop and not worst.accepted:
            break
    return Verdict(worst.excess, worst.case, undefined)


def _cases(shape: tuple[int, ...], roles: Layout | None, seed: int) -> Iterator[tuple[str, Array]]:
    if roles is None:
        yield from hard_votes(shape, seed)
        return

    def drawn(sizes: tuple[int, ...]) -> Iterator[Case]:
        return ((name, (x,)) for name, x in hard_votes(sizes, seed))

    for name, (votes,) in shared_cases(drawn, roles.sizes, seed):
        yield name, roles.write(votes)


def _sensitivity(hypothesis: Callable[[Array], Array], x: Array, found: Array) -> Array:
    """How far rounding of the votes moves each pose: the largest of a few draws, times 8."""
    rng = np.random.default_rng(9)
    moved = [hypothesis(x * (1 + ROUNDING * rng.choice((-1.0, 1.0), x.shape))) for _ in range(3)]
    off = [np.abs(m - found).max(-1, keepdims=True) for m in moved]
    return np.asarray(8 * np.max(off, axis=0))


def excess_of(
    found: Array, wanted: Array, rtol: float, floor: float, own: Array | float = 0.0
) -> float:
    """Largest difference over what is allowed: ``floor + rtol·size of the pose + own``.

    Infinite where ``found`` is not finite and ``wanted`` is.
    """
    finite = np.isfinite(wanted)
    clean = np.where(finite, wanted, 0)
    off = np.where(finite, np.abs(found - clean), 0)
    if not np.isfinite(off).all():
        return float("inf")
    return float(excess(off, clean, Tolerance(floor, rtol), own / NOISE).max(initial=0))
