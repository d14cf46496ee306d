"""Check whether a hypothesis computes the same as the original nodes.

Inputs are freshly generated: random, structured and hard. The original nodes run in FP64 if possible, so a
hypothesis must agree to six digits of every pose, at every magnitude of the input. The file's constants are
FP32, and routing amplifies their rounding through exponentials. The tolerance therefore includes the effect
on the hypothesis of changing the votes by half a unit in FP32's last place.

Routing computes the same function at every position ``n`` of votes ``[n, j, i, p]``. So a few positions
suffice to tell hypotheses apart, and each case of a check needs only some; the whole check covers all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.values import Array, Function
from capsedge.tolerance import NOISE_FACTOR, Tolerance, excess

# --- Sampling of large votes: fewer positions, several hard cases in one tensor ---

LARGE = 1 << 17  # elements from which votes count as large
SIDE_BY_SIDE = "hard cases side by side"
_FEW = 8  # maximum number of sampled positions
_TURNS = 2  # times that every position takes part in the cases
_EACH = 4  # least number of positions for each case and turn: 8 draws in all, where 7 images give 7

Case = tuple[str, tuple[Array, ...]]
Cases = Callable[[tuple[int, ...]], Iterator[Case]]


def sampled_positions(sizes: Sequence[int]) -> slice | Array:
    """The positions of votes ``[n, j, i, p]`` used to rank hypotheses: all, or a few for large votes."""
    if math.prod(sizes) <= LARGE or sizes[0] <= _FEW:
        return slice(None)
    return np.linspace(0, sizes[0] - 1, _FEW).astype(int)


def batched_cases(cases: Cases, sizes: tuple[int, ...], seed: int) -> Iterator[Case]:
    """The cases, each in its own tensors; for large votes with many positions, in shared tensors.

    Args:
        cases: draws named tuples of tensors, positions first, for votes of given sizes.
        sizes: sizes of the votes ``[n, j, i, p]``.
    """
    count = _count(cases)
    if not _shared(sizes, count):
        yield from cases(sizes)
        return
    joined = _joined(cases, (sizes[0] // count, *sizes[1:]))
    rng = np.random.default_rng(seed)
    for _ in range(_TURNS):
        order = rng.permutation(sizes[0]) % len(joined[0])
        yield SIDE_BY_SIDE, tuple(each[order] for each in joined)


def screening_cases(cases: Cases, sizes: tuple[int, ...]) -> tuple[slice | Array, Iterator[Case]]:
    """Cases for ranking hypotheses before a check, and the positions to compare.

    All cases and positions; for large votes with many positions, one tensor with one position per case.
    """
    count = _count(cases)
    if not _shared(sizes, count):
        return slice(None), cases(sizes)
    joined = _joined(cases, (1, *sizes[1:]))
    order = np.arange(sizes[0]) % count
    return np.arange(count), iter([(SIDE_BY_SIDE, tuple(each[order] for each in joined))])


def _count(cases: Cases) -> int:
    return sum(1 for _ in cases((1, 1, 1, 1)))


def _shared(sizes: tuple[int, ...], count: int) -> bool:
    """Whether this many cases share one tensor, each at its own positions."""
    return math.prod(sizes) > LARGE and sizes[0] >= _EACH * count


def _joined(cases: Cases, sizes: tuple[int, ...]) -> list[Array]:
    """The tensors of all cases, one after another."""
    drawn = [arrays for _, arrays in cases(sizes)]
    return [np.concatenate(parts) for parts in zip(*drawn, strict=True)]


# --- The check ---

STRICT = 1e-6  # in FP64, relative to the magnitude of a pose
LOOSE = 2e-5  # the same in FP32
ROUNDING = 2.0**-24  # rounding error of FP32
FLOOR = 1e-25  # values below this are indistinguishable from zero in FP32
SIZES = (1e-6, 1e-4, 1e-2, 1.0, 3.0, 30.0)


@dataclass(frozen=True)
class Equivalence:
    """The difference between a hypothesis and the original.

    Attributes:
        excess: largest ratio of a difference to its tolerance; up to 1 is accepted.
        case: the input where it was found.
        undefined: whether the original produced non-finite values, which were not compared.
    """

    excess: float
    case: str
    undefined: bool = False

    @property
    def accepted(self) -> bool:
        return self.excess <= 1


def hard_votes(shape: tuple[int, ...], seed: int) -> Iterator[tuple[str, Array]]:
    """Named inputs: normal of many magnitudes, uniform, offset, all equal, zero, one spike, a few large."""
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


def computes_in_fp64(function: Function, x: Array) -> bool:
    """Whether a function computes in FP64: a change below FP32's resolution must change its result."""
    base, moved = function(x)[0], function(x * (1 + 1e-10))[0]
    return bool(np.any(base != moved))


def poses_last(function: Function, axis: int) -> Callable[[Array], Array]:
    """Turn a function of a graph with poses along some axis into one with poses along the last axis."""
    return lambda x: np.moveaxis(function(np.moveaxis(x, -1, axis))[0], axis, -1)


def poses_alone(shape: tuple[int, ...]) -> Layout:
    """The layout ``[n, j, i, p]`` of poses along the last axis, each of which is a position."""
    rank = len(shape)
    return Layout(shape, shape, tuple(range(rank)), (rank - 1, 0, 0, 1))


def check_equivalence(
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
) -> Equivalence:
    """Compare two functions of votes, one pose (the last axis) at a time.

    Args:
        original, hypothesis: return poses in the same layout.
        floor: differences up to this size are ignored.
        roles: layout of the votes, ``[n, j, i, p]``, if their positions are independent.
        ranked: whether hypotheses are ranked by their excess, which then allows for rounding everywhere.
        stop: whether to stop at the first difference, if only a yes or no is needed.
    """
    worst, undefined = Equivalence(0.0, ""), False
    for name, x in _cases(shape, roles, seed):
        wanted, found = original(x), hypothesis(x)
        finite = np.isfinite(wanted)
        undefined |= not finite.all()
        share = excess_of(found, wanted, rtol, floor)
        if ranked or not share <= 1:  # the effect of rounding is measured only where it matters
            share = excess_of(found, wanted, rtol, floor, _sensitivity(hypothesis, x, found))
        if not share <= worst.excess:
            worst = Equivalence(share, name)
        if stop and not worst.accepted:
            break
    return Equivalence(worst.excess, worst.case, undefined)


def _cases(shape: tuple[int, ...], roles: Layout | None, seed: int) -> Iterator[tuple[str, Array]]:
    if roles is None:
        yield from hard_votes(shape, seed)
        return

    def drawn(sizes: tuple[int, ...]) -> Iterator[Case]:
        return ((name, (x,)) for name, x in hard_votes(sizes, seed))

    for name, (votes,) in batched_cases(drawn, roles.sizes, seed):
        yield name, roles.write(votes)


def _sensitivity(hypothesis: Callable[[Array], Array], x: Array, actual: Array) -> Array:
    """How much rounding the votes changes each pose: the largest of a few draws, times 8."""
    rng = np.random.default_rng(9)
    moved = [hypothesis(x * (1 + ROUNDING * rng.choice((-1.0, 1.0), x.shape))) for _ in range(3)]
    off = [np.abs(m - actual).max(-1, keepdims=True) for m in moved]
    return np.asarray(8 * np.max(off, axis=0))


def excess_of(
    actual: Array, expected: Array, rtol: float, floor: float, original_error: Array | float = 0.0
) -> float:
    """Largest ratio of a difference to its tolerance, ``floor + rtol·size of the pose + own``.

    Infinite if ``actual`` is not finite where ``expected`` is.
    """
    finite = np.isfinite(expected)
    clean = np.where(finite, expected, 0)
    off = np.where(finite, np.abs(actual - clean), 0)
    if not np.isfinite(off).all():
        return float("inf")
    return float(
        excess(off, clean, Tolerance(floor, rtol), original_error / NOISE_FACTOR).max(initial=0)
    )
