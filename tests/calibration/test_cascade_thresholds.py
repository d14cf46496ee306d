"""Thresholds of escalation: the cheapest that images and their copies allow, and the bound on misses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import Generator

from capsedge.optimization.cascade_thresholds import (
    PairScores,
    agreement_at_least,
    choose_thresholds,
    decisions_from_scores,
    margins_of,
    most_changed,
)


def _scored(rng: Generator, count: int, rate: float = 0.3) -> PairScores:
    margins, best = rng.random((2, count), np.float32)
    return PairScores(margins, best, (margins < 0.4) & (rng.random(count) < rate))


@pytest.mark.parametrize("allowed", [0, 2])
def test_thresholds_are_the_cheapest(allowed: int):
    """Against every pair of thresholds, by trial: escalated among the usual images."""
    rng = np.random.default_rng(5)
    usual, copies = _scored(rng, 40, 0.1), _scored(rng, 60)
    found = choose_thresholds(usual, copies, allowed)
    assert usual.missed(found) + copies.missed(found) <= allowed
    both = PairScores.joined([usual, copies])
    for m in (0, *np.nextafter(both.margins, np.float32(2))):
        for s in (0, *np.nextafter(both.best, np.float32(2))):
            escalated = (both.margins < m) | (both.best < s)
            if (both.changed & ~escalated).sum() <= allowed:
                assert escalated[: len(usual)].mean() >= usual.share(found)


def test_copies_alone_can_demand_escalation():
    usual = PairScores(np.float32([0.2, 0.6]), np.float32([0.9, 0.9]), np.zeros(2, bool))
    copies = PairScores(np.float32([0.3, 0.6]), np.float32([0.95, 0.9]), np.array([True, False]))
    found = choose_thresholds(usual, copies, 0)
    assert copies.missed(found) == 0
    assert usual.share(found) in (0, 0.5)
    assert copies.missed(choose_thresholds(usual, usual, 0)) == 1


def test_a_limit_on_the_share_is_kept_with_the_fewest_missed():
    rng = np.random.default_rng(6)
    usual, copies = _scored(rng, 300, 0.0), _scored(rng, 400)
    free = choose_thresholds(usual, copies, 0)
    most = usual.share(free) / 2
    limited = choose_thresholds(usual, copies, 0, most)
    assert usual.share(limited) <= most
    missed = copies.missed(limited)
    assert missed > 0
    assert usual.share(choose_thresholds(usual, copies, missed - 1)) > most


def test_thousands_of_changed_decisions():
    """Not every threshold is tried then; what is chosen still lets no more pass."""
    rng = np.random.default_rng(7)
    usual, copies = _scored(rng, 500, 0.0), _scored(rng, 20_000, 0.5)
    found = choose_thresholds(usual, copies, 3)
    assert copies.missed(found) <= 3
    assert usual.share(found) < 1


def test_what_is_less_clear_than_anything_seen_is_escalated():
    margins, best = np.float32([0.5, 0.25]), np.float32([0.5, 0.75])
    usual = PairScores(margins, best, np.array([False, False]))
    found = choose_thresholds(usual, usual, 0)
    assert (found.margin, found.score) == (0.25, 0.5)
    assert not found.escalates(margins, best).any()
    assert found.escalates(np.float32([0.2, 0.9]), np.float32([0.9, 0.4])).all()
    assert choose_thresholds(usual, usual, 0, by_score=False).score is None


def test_margins_and_decisions():
    scores = np.array([[0.75, 0.25, 0.5], [0.5, 0.5, 0.25]], np.float32)
    assert margins_of(scores, None).tolist() == [0.25, 0]
    assert margins_of(scores, 0.625).tolist() == [0.125, 0.125]
    assert decisions_from_scores(scores, None).tolist() == [[0], [0]]
    assert decisions_from_scores(scores, 0.5).tolist() == [[True, False, True], [True, True, False]]
    other = np.array([[0.25, 0.75, 0.5], [0.5, 0.5, 0.25]], np.float32)
    assert PairScores.of(scores, other, None).changed.tolist() == [True, False]


def test_the_lower_bound_is_clopper_and_pearson():
    """None changed of n: the n-th root of 5 %; otherwise so few changes have the probability 5 %."""
    assert agreement_at_least(0, 3000) == pytest.approx(0.05 ** (1 / 3000), abs=1e-12)
    bound = agreement_at_least(10, 100)
    terms = (math.comb(100, k) * (1 - bound) ** k * bound ** (100 - k) for k in range(11))
    assert sum(terms) == pytest.approx(0.05, abs=1e-9)
    assert agreement_at_least(7, 7) == 0


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.98, 0.999, 1.0])
def test_as_many_may_change_as_prove_the_agreement(agreement: float):
    images = 2000
    most = most_changed(images, agreement)
    assert most == 0 or agreement_at_least(most, images) >= agreement
    assert most == images or agreement_at_least(most + 1, images) < agreement
