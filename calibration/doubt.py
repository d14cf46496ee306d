"""Which images a small network is not sure of: thresholds chosen on images, and a bound on what they miss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.cascade import CONFIDENCE

_STEPS = 100  # of a bisection to the last bit of a double


@dataclass(frozen=True)
class Thresholds:
    """An image is in doubt where its margin is below ``margin``, or its best score below ``score``.

    Attributes:
        score: None where the margin alone decides.
    """

    margin: float
    score: float | None = None

    def doubted(self, margins: NDArray[np.float32], best: NDArray[np.float32]) -> NDArray[np.bool_]:
        """The images in doubt ``[N]``; NaN is in doubt."""
        sure = margins >= np.float32(self.margin)
        if self.score is not None:
            sure &= best >= np.float32(self.score)
        return np.asarray(~sure)


def margins_of(scores: NDArray[np.float32], threshold: float | None) -> NDArray[np.float32]:
    """How far each decision ``[N]`` for scores ``[N, J]`` is from another one, in float32 as in the graph.

    Args:
        threshold: of several labels, the score from which one is given; None where the best class is.
    """
    if threshold is not None:
        return np.asarray(np.abs(scores - np.float32(threshold)).min(axis=1))
    best = np.partition(scores, -2, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


def decided(scores: NDArray[Any], threshold: float | None) -> NDArray[Any]:
    """The decisions for scores ``[N, J]``: the best class ``[N, 1]``, or the labels given ``[N, J]``."""
    if threshold is None:
        return np.asarray(scores.argmax(axis=1)[:, None])
    return np.asarray(scores >= np.float32(threshold))


def choose(
    margins: NDArray[np.float32],
    best: NDArray[np.float32],
    changed: NDArray[np.bool_],
    allowed: int,
    by_score: bool = True,
) -> Thresholds:
    """The thresholds with the fewest images in doubt that let at most ``allowed`` changed decisions pass.

    Every threshold on the margin that lies just above a changed decision is tried, each with the lowest one
    on the score that catches the rest. What is less clear than all of these images is in doubt too, at no
    cost among them: neither threshold is below the least value seen.

    Args:
        margins, best: of the small network ``[N]``.
        changed: where the large network decides otherwise ``[N]``.
        by_score: whether the best score is a criterion too.
    """
    wrong_margin, wrong_best = margins[changed], best[changed]
    least = float(best.min()) if by_score else None
    tried = np.unique(np.maximum(np.append(_above(wrong_margin), margins.min()), margins.min()))
    found: list[tuple[int, Thresholds]] = []
    for margin in tried:
        missed = np.sort(wrong_best[wrong_margin >= margin])
        if len(missed) <= allowed:
            chosen = Thresholds(float(margin), least)
        elif by_score:
            chosen = Thresholds(float(margin), float(_above(missed)[len(missed) - allowed - 1]))
        else:
            continue
        found.append((int(chosen.doubted(margins, best).sum()), chosen))
    return min(found, key=lambda each: each[0])[1]


def _above(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.nextafter(values, np.float32(np.inf)), np.float32)


def agreement_at_least(changed: int, images: int, confidence: float = CONFIDENCE) -> float:
    """A one-sided lower bound on the agreement, from a number of changed decisions among independent images.

    Exact (Clopper and Pearson 1934, "The use of confidence or fiducial limits"): the agreement at which so
    few changes would have the probability ``1 - confidence``.
    """
    if changed >= images:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _at_most(changed, images, 1.0 - middle) > 1.0 - confidence:
            high = middle
        else:
            low = middle
    return low


def _at_most(most: int, trials: int, rate: float) -> float:
    """The probability of at most ``most`` successes in ``trials``, each with the probability ``rate``."""
    if rate <= 0.0:
        return 1.0
    if rate >= 1.0:
        return 0.0
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * log_rate + (trials - k) * log_rest
        )
        for k in range(most + 1)
    )  # fmt: skip
