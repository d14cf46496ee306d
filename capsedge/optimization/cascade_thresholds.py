"""Choose escalation thresholds on images, and bound the number of changed decisions that they miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.metrics import binomial_at_most
from capsedge.runtime.metadata.cascade_metadata import CONFIDENCE

_STEPS = 100  # steps of a bisection to the last bit of a double
_MAX_CANDIDATES = 256  # thresholds on the margin


@dataclass(frozen=True)
class Thresholds:
    """An image is escalated if its margin is below ``margin`` or its best score is below ``score``.

    Attributes:
        score: None if the margin alone decides.
    """

    margin: float
    score: float | None = None

    def escalates(
        self, margins: NDArray[np.float32], best: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Which images are escalated ``[N]``; those with NaN are."""
        sure = margins >= np.float32(self.margin)
        if self.score is not None:
            sure &= best >= np.float32(self.score)
        return np.asarray(~sure)


def margins_of(scores: NDArray[np.float32], threshold: float | None) -> NDArray[np.float32]:
    """How far each decision ``[N]`` for scores ``[N, J]`` is from changing, in float32 as in the graph.

    Args:
        threshold: the score from which one of several labels is given; None if the best class decides.
    """
    if threshold is not None:
        return np.asarray(np.abs(scores - np.float32(threshold)).min(axis=1))
    best = np.partition(scores, -2, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


def decisions_from_scores(scores: NDArray[Any], threshold: float | None) -> NDArray[Any]:
    """The decisions for scores ``[N, J]``: the best class ``[N, 1]``, or the given labels ``[N, J]``."""
    if threshold is None:
        return np.asarray(scores.argmax(axis=1)[:, None])
    return np.asarray(scores >= np.float32(threshold))


@dataclass(frozen=True)
class PairScores:
    """The results of two networks for some images.

    Attributes:
        margins, best: margin and best score of the small network ``[N]``.
        changed: whether the large network decides differently, ``[N]``.
    """

    margins: NDArray[np.float32]
    best: NDArray[np.float32]
    changed: NDArray[np.bool_]

    @classmethod
    def of(
        cls, small: NDArray[np.float32], large: NDArray[np.float32], threshold: float | None
    ) -> PairScores:
        """Make it from the scores ``[N, J]`` of both; ``threshold`` as for `margins_of`."""
        first, second = (decisions_from_scores(each, threshold) for each in (small, large))
        changed = (first != second).any(axis=1)
        return cls(margins_of(small, threshold), small.max(axis=1), changed)

    @classmethod
    def joined(cls, parts: Sequence[PairScores]) -> PairScores:
        """Join the results for several sets of images."""
        names = ("margins", "best", "changed")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.margins)

    def share(self, thresholds: Thresholds) -> float:
        """The share of the escalated images."""
        return float(thresholds.escalates(self.margins, self.best).mean())

    def missed(self, thresholds: Thresholds) -> int:
        """The number of changed decisions that are not escalated."""
        return int((self.changed & ~thresholds.escalates(self.margins, self.best)).sum())


def choose_thresholds(
    usual: PairScores,
    copies: PairScores,
    allowed: int,
    most_share: float = 1.0,
    by_score: bool = True,
) -> Thresholds:
    """Choose thresholds that escalate the fewest ordinary images while letting few changed decisions pass.

    Neither threshold is below the smallest value seen on usual images. Less clear images are therefore
    escalated too, at no cost for usual ones.

    Args:
        usual: images like those that the cascade will see.
        copies: augmented copies of them.
        allowed: largest number of changed decisions among both that may be missed; exceeded as little as
            possible if ``most_share`` requires it.
        most_share: largest share of the usual images that are escalated.
        by_score: whether the best score is also a criterion.
    """

    def cheapest(missed: int) -> Thresholds:
        choices = _letting_pass(usual, copies, missed, by_score)
        return min(choices, key=usual.share)

    first = cheapest(allowed)
    if usual.share(first) <= most_share:
        return first
    low, high = allowed, int(usual.changed.sum() + copies.changed.sum())
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if usual.share(cheapest(middle)) <= most_share else (middle, high)
    return cheapest(high)


def _letting_pass(
    usual: PairScores, copies: PairScores, allowed: int, by_score: bool
) -> Iterator[Thresholds]:
    """Thresholds on the margin, each with the lowest score threshold that misses at most ``allowed`` changes.

    The margins lie just above changed decisions; of thousands, some are tried.
    """
    all_ = PairScores.joined([usual, copies])
    wrong_margin, wrong_best = all_.margins[all_.changed], all_.best[all_.changed]
    floor = usual.margins.min()
    least = float(usual.best.min()) if by_score else None
    tried = np.unique(np.maximum(np.append(_above(wrong_margin), floor), floor))
    if len(tried) > _MAX_CANDIDATES:
        tried = tried[np.linspace(0, len(tried) - 1, _MAX_CANDIDATES).astype(int)]
    for margin in tried:
        missed = np.sort(wrong_best[wrong_margin >= margin])
        if by_score:
            missed = missed[missed >= np.float32(least)]
        if len(missed) <= allowed:
            yield Thresholds(float(margin), least)
        elif by_score:
            yield Thresholds(float(margin), float(_above(missed)[len(missed) - allowed - 1]))


def _above(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.nextafter(values, np.float32(np.inf)), np.float32)


def agreement_at_least(changed: int, images: int, confidence: float = CONFIDENCE) -> float:
    """A one-sided lower bound on the agreement, given the changed decisions among independent images.

    Exact (Clopper and Pearson 1934, "The use of confidence or fiducial limits"): the agreement at which so
    few changes would have probability ``1 - confidence``.
    """
    if changed >= images:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if binomial_at_most(changed, images, 1.0 - middle) > 1.0 - confidence:
            high = middle
        else:
            low = middle
    return low


def most_changed(images: int, agreement: float, confidence: float = CONFIDENCE) -> int:
    """The largest number of changed decisions that still guarantees an agreement; 0 if there is none."""
    low, high = 0, images
    while low < high:
        middle = (low + high + 1) // 2
        if binomial_at_most(middle, images, 1.0 - agreement) <= 1.0 - confidence:
            low = middle
        else:
            high = middle - 1
    return low
