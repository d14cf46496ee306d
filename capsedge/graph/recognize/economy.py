"""Large votes: fewer places while hypotheses are weighed, several hard cases in one tensor.

Routing does the same at every place ``n`` of votes ``[n, j, i, p]``. So a few places tell hypotheses apart,
and each case of a judgement needs only a share of them; the judgement itself looks at every place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from capsedge.graph.recognize.values import Array

LARGE = 1 << 21  # elements of votes
SIDE_BY_SIDE = "hard cases side by side"
_FEW = 8  # places
_TURNS = 2  # that every place takes at the cases

Case = tuple[str, tuple[Array, ...]]
Cases = Callable[[tuple[int, ...]], Iterator[Case]]


def some_places(sizes: Sequence[int]) -> slice | Array:
    """The places of votes ``[n, j, i, p]`` that hypotheses are weighed on: all, or a few of large votes."""
    if math.prod(sizes) <= LARGE or sizes[0] <= _FEW:
        return slice(None)
    return np.linspace(0, sizes[0] - 1, _FEW).astype(int)


def shared_cases(cases: Cases, sizes: tuple[int, ...], seed: int) -> Iterator[Case]:
    """The cases, each in tensors of its own; of large votes with many places in tensors that they share.

    Args:
        cases: draws named tuples of tensors, which begin with the places, for votes of given sizes.
        sizes: of the votes ``[n, j, i, p]``.
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
    """Cases that weigh hypotheses before a judgement, and the places to look at.

    All cases and places; of large votes with many places one tensor, in which each case has one place.
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
    """Whether so many cases share the places of a tensor."""
    return math.prod(sizes) > LARGE and sizes[0] >= 2 * count


def _joined(cases: Cases, sizes: tuple[int, ...]) -> list[Array]:
    """The tensors of all cases, one after another."""
    drawn = [arrays for _, arrays in cases(sizes)]
    return [np.concatenate(parts) for parts in zip(*drawn, strict=True)]
