"""The numerical comparison of a function with what it seems to be."""

from __future__ import annotations

import numpy as np
import pytest

from capsedge.graph.fusion.equivalence import check_equivalence, computes_in_fp64, hard_votes
from capsedge.graph.fusion.values import Array

SHAPE = (3, 2, 4)


def halves(x: Array) -> list[Array]:
    return [x.astype(np.float32).astype(np.float64) / 2]


def test_rounding_to_fp32_is_seen() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE)
    assert computes_in_fp64(lambda x: [x / 2], x)
    assert not computes_in_fp64(halves, x)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [name for name, _ in hard_votes(SHAPE, 5)]
    assert {"uniform", "offset", "equal", "zero", "spike", "sparse"} < set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("ranked", [False, True])
def test_rounding_is_allowed_for_where_it_matters(ranked: bool) -> None:
    """A difference of half the tolerance: ranked, it counts for less, since rounding may cause part of it."""

    def original(x: Array) -> Array:
        return np.asarray(1e3 * (x - x.mean()))

    found = check_equivalence(
        original, lambda x: original(x) * (1 + 5e-8), SHAPE, 1e-7, floor=0.0, ranked=ranked
    )
    assert found.accepted
    assert (found.excess < 0.45) == ranked
    wrong = check_equivalence(original, lambda x: original(x) * 1.5, SHAPE, 1e-7, ranked=ranked)
    assert not wrong.accepted
