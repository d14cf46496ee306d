"""Number and shape of the votes of a routing node, from which its operations and memory follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsedge.schema.operators import DENSE, GIVEN, Operator


@dataclass(frozen=True)
class Votes:
    """Votes ``[N, positions, children, parents, pose]`` (docs/reference/operators.md).

    Attributes:
        positions: output positions.
        children: children per window.
        parents: parents per position.
        pose: elements per vote.
        depth: products per element of a vote; 0 where the votes are given.
    """

    positions: int
    children: int
    parents: int
    pose: int
    depth: int

    @property
    def elements(self) -> int:
        """Elements of all votes, per image."""
        return self.positions * self.children * self.parents * self.pose


def votes_of(
    operator: Operator,
    children: Sequence[Any],
    weight: Sequence[Any],
    attributes: Mapping[str, Any],
) -> Votes:
    """The votes of a node.

    Args:
        operator: a routing operator.
        children: shape of its first input, with any batch.
        weight: shape of its weight; not looked at where the votes are given.
        attributes: attributes of the node; missing ones have their defaults.

    Raises:
        ValueError: the operator cannot have these shapes or attributes, or a size is unknown.
    """
    if operator.layout is DENSE:
        _, parents, pose, depth = _sizes(weight)
        (types,) = _sizes(children[1:2])  # one weight may serve all children
        return Votes(1, types, parents, pose, depth)
    if operator.layout is GIVEN:
        types, parents, pose = _sizes(children[1:])
        return Votes(1, types, parents, pose, 0)
    rows, columns, types, parents, depth, last = _sizes(weight)
    height, width, _, size = _sizes(children[1:])
    if not operator.integer(attributes, "matrix_pose"):
        size = last
    if "shared" in operator.attribute_names and operator.integer(attributes, "shared"):
        return Votes(1, height * width * types, parents, size, depth)
    down, right = _sizes(attributes.get("strides") or (1, 1))
    if rows > height or columns > width or down < 1 or right < 1:
        raise ValueError("the window does not fit the grid")
    positions = ((height - rows) // down + 1) * ((width - columns) // right + 1)
    return Votes(positions, rows * columns * types, parents, size, depth)


def _sizes(shape: Sequence[Any]) -> list[int]:
    if not isinstance(shape, (list, tuple)) or not all(isinstance(d, int) for d in shape):
        raise ValueError("a size is not known")
    return list(shape)
