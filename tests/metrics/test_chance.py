"""An accuracy that guesses would reach stops what is judged by it; few images stop nothing."""

from __future__ import annotations

import numpy as np
import pytest

from capsedge.errors import UsageError
from capsedge.metrics import binomial_at_most, check_above_chance


@pytest.mark.parametrize(
    ("right", "images", "classes", "verdict"),
    [
        (13, 100, 10, "refused"),
        (0, 100, 10, "refused"),  # labels from 1, as often
        (100, 1000, 10, "refused"),
        (50, 100, 2, "refused"),
        (0, 8, 10, "refused"),
        (1, 4, 10, "warned"),
        (0, 1, 10, "warned"),
        (1, 1, 2, "warned"),
        (19, 30, 2, "warned"),  # as of a network that is right on 65 %
        (3, 3, 10, "passed"),
        (9, 10, 10, "passed"),
        (99, 100, 10, "passed"),
        (60, 100, 2, "passed"),
        (600, 1000, 2, "passed"),
        (20, 100, 10, "passed"),  # poor, but no chance
        (5, 5, 1, "passed"),  # nothing to guess
        (0, 0, 10, "passed"),
    ],
)
def test_verdict(right: int, images: int, classes: int, verdict: str) -> None:
    accuracy = right / images if images else 0.0
    if verdict == "refused":
        with pytest.raises(UsageError) as refused:
            check_above_chance(accuracy, images, classes, "lengths", "data.npz")
        assert f"right on {right} of {images}" in refused.value.why
        checked = " ".join(refused.value.details)
        assert all(word in checked for word in ("labels", "range", "output", "lengths"))
        return
    found = check_above_chance(accuracy, images, classes, "lengths", "data.npz")
    assert verdict == ("warned" if found else "passed")


def test_a_good_network_is_never_stopped_by_few_images() -> None:
    """Of 1,000 sets of 1 to 40 images, for networks right on 80 to 100 %."""
    rng = np.random.default_rng(0)
    stopped = 0
    for _ in range(1000):
        images, classes = int(rng.integers(1, 41)), int(rng.integers(2, 101))
        right = rng.binomial(images, rng.uniform(0.85, 1.0))
        try:
            check_above_chance(right / images, images, classes, "s", "d")
        except UsageError:
            stopped += 1
    assert stopped == 0


def test_guesses_are_stopped() -> None:
    rng = np.random.default_rng(1)
    stopped = 0
    for _ in range(200):
        classes = int(rng.integers(2, 101))
        try:
            check_above_chance(rng.binomial(300, 1 / classes) / 300, 300, classes, "s", "d")
        except UsageError:
            stopped += 1
    assert stopped >= 180  # the rest are luckier than 19 of 20 sets


def test_binomial() -> None:
    draws = np.random.default_rng(2).binomial(20, 0.3, 200_000)
    for count in (0, 3, 6, 12, 20):
        assert binomial_at_most(count, 20, 0.3) == pytest.approx((draws <= count).mean(), abs=5e-3)
    assert (
        binomial_at_most(-1, 5, 0.5),
        binomial_at_most(5, 5, 0.5),
        binomial_at_most(2, 5, 0.0),
    ) == (0.0, 1.0, 1.0)
    assert binomial_at_most(2, 5, 1.0) == 0.0
