"""Where the poses of a layer come from: the order of its children, and the whole numbers that mark cells."""

from __future__ import annotations

import numpy as np

from capsedge.graph.fusion.votes import _numbers, order_of


def test_the_order_of_children_is_known_where_every_cell_is_one() -> None:
    found = order_of(np.array([[2, 0, 1]]))
    assert found is not None
    assert found.tolist() == [1, 2, 0]
    for index in ([[0, 0, 1]], [[0, 1], [1, 0]], [[0, 1, 3]]):
        assert order_of(np.array(index)) is None


def test_cells_are_told_by_whole_multiples() -> None:
    one = np.array([[0.5, -2.0], [1.0, 0.0]])
    numbers = np.array([3, 1])
    found = _numbers(one, numbers[:, None] * one, 3)
    assert found is not None
    assert found.tolist() == [3, 1]
    for other in (
        np.array([4, 1])[:, None] * one,  # there are three cells
        np.array([0, 1])[:, None] * one,
        np.array([1.5, 1])[:, None] * one,
        numbers[:, None] * one + [[0.1, 0.0], [0.0, 0.0]],
        np.full((2, 2), np.nan),
    ):
        assert _numbers(one, other, 3) is None
