"""What is spared on large votes: nothing may pass that would not pass on small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capsedge.graph.fusion import equivalence
from capsedge.graph.fusion.attention import check_attention
from capsedge.graph.fusion.em import best_em, check_em, hard_cases
from capsedge.graph.fusion.equivalence import (
    SIDE_BY_SIDE,
    STRICT,
    batched_cases,
    check_equivalence,
    hard_votes,
    sampled_positions,
    screening_cases,
)
from capsedge.graph.fusion.formulas import EM, Attention, Dynamic
from capsedge.graph.fusion.layouts import Layout
from tests.exports import Exports

SIZES = (48, 3, 5, 4)  # places, parents, children, elements
ROLES = Layout(SIZES, SIZES, (0, 1, 2, 3), (1, 1, 1, 1), 0)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def all_votes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "LARGE", 0)


def test_every_case_is_at_several_places() -> None:
    names = [name for name, _ in hard_votes((1, 1, 1, 1), 0)]

    def numbered(sizes: tuple[int, ...]) -> Iterator[equivalence.Case]:
        for k, name in enumerate(names):
            yield name, (np.full(sizes, k), np.full(sizes[:1], k))

    found = list(batched_cases(numbered, SIZES, 0))
    assert [name for name, _ in found] == [SIDE_BY_SIDE] * 2
    for _, (votes, others) in found:
        assert votes.shape == SIZES
        assert (votes[:, 0, 0, 0] == others).all()
        assert np.bincount(others).tolist() == [4] * len(names)


@pytest.mark.parametrize("most", [1, 20, 60, 300, 1 << 20])
def test_pieces_are_the_rows_in_order(most: int) -> None:
    layout = Layout((2, 5, 3, 4, 3), (2, 5, 3, 4, 3), (0, 4, 2, 1, 3), (2, 1, 1, 1), 0)
    votes = RNG.standard_normal(layout.shape)
    pieces = list(layout.pieces(votes, most))
    np.testing.assert_array_equal(np.concatenate(pieces), layout.rows(votes))
    assert all(len(p) == 1 or p.size <= most for p in pieces)
    assert len(pieces) > 1 or most >= votes.size


def test_a_screening_has_a_place_of_every_case() -> None:
    few, cases = screening_cases(hard_cases, SIZES)
    ((name, (votes, _)),) = list(cases)
    drawn = [x for _, (x, _) in hard_cases((1, *SIZES[1:]))]
    assert name == SIDE_BY_SIDE
    assert votes.shape == SIZES
    np.testing.assert_array_equal(votes[few], np.concatenate(drawn))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7, 1e-6])
def test_a_screening_finds_the_epsilon(epsilon: float) -> None:
    kind = EM((0.01, 0.02), RNG.standard_normal(3), RNG.standard_normal(3), epsilon)
    kinds = [replace(kind, epsilon=e) for e in (1e-10, 1e-9, 1e-8, 1e-7, 2e-7, 1e-6, 1e-3)]
    assert best_em(kind, kinds, SIZES).epsilon == epsilon


def test_few_places_have_cases_of_their_own() -> None:
    few = list(batched_cases(hard_cases, (7, *SIZES[1:]), 0))
    assert len(few) == len(list(hard_cases(SIZES)))
    assert sampled_positions((7, *SIZES[1:])) == slice(None)
    assert len(sampled_positions(SIZES)) == 8  # type: ignore[arg-type]


def _dynamic() -> tuple[Any, dict[str, Any], Callable[[Any, Any], bool]]:
    kind = Dynamic(3, prior=RNG.standard_normal((3, 5)), epsilon=1e-8)
    mutants = {
        "one iteration more": replace(kind, iterations=4),
        "one iteration less": replace(kind, iterations=2),
        "epsilon": replace(kind, epsilon=1e-7),
        "other softmax": replace(kind, over="i"),
        "no prior": replace(kind, prior=np.zeros((3, 5))),
        "one prior": replace(kind, prior=kind.prior + 1e-4 * np.eye(3, 5)),
        "replaced logits": replace(kind, replace=True),
        "average over the batch": replace(kind, batch_mean=True),
    }
    return (
        kind,
        mutants,
        lambda one, other: check_equivalence(one, other, SIZES, STRICT, roles=ROLES).accepted,
    )


def _em() -> tuple[Any, dict[str, Any], Callable[[Any, Any], bool]]:
    kind = EM((0.01, 0.02), RNG.standard_normal(3), RNG.standard_normal(3), 1e-6)
    mutants = {
        "one iteration more": replace(kind, temperatures=(0.01, 0.02, 0.03)),
        "temperature": replace(kind, temperatures=(0.01, 0.0202)),
        "epsilon": replace(kind, epsilon=1e-5),
        "beta": replace(kind, beta_u=kind.beta_u + 1e-4),
        "normalized": replace(kind, normalized=True),
    }
    return kind, mutants, lambda one, other: check_em(one, other, SIZES).accepted


def _attention() -> tuple[Any, dict[str, Any], Callable[[Any, Any], bool]]:
    kind = Attention(0.5, 1 + 0.1 * RNG.random(4), RNG.random(4), 1e-5)
    mutants = {
        "agreement scale": replace(kind, agreement_scale=0.505),
        "epsilon": replace(kind, epsilon=1e-4),
        "other softmax": replace(kind, over="i"),
        "bias": replace(kind, bias=kind.bias + 1e-4),
    }
    return kind, mutants, lambda one, other: check_attention(one, other, SIZES).accepted


@pytest.mark.parametrize("made", [_dynamic, _em, _attention])
def test_mutants_are_rejected(made: Any) -> None:
    kind, mutants, accepts = made()
    assert accepts(kind, kind)
    assert not [name for name, mutant in mutants.items() if accepts(kind, mutant)]


def test_a_change_at_one_place_is_seen() -> None:
    kind, _, accepts = _dynamic()

    def changed(votes: Any) -> Any:
        found = kind(votes)
        found[17] *= 1 + 1e-4
        return found

    assert not accepts(changed, kind)


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("dynamic", "attention")]


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["em", *SLOW])
def test_networks_come_back(family: str, exported: Exports) -> None:
    pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")
    from tests.exporters.nets import network
    from tests.graph.fusion.test_round_trip import round_trip

    round_trip(network(family), exported, "script")
