"""Where in a network's maps the children of a routing node lie: found by changing the maps place by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError
from capsedge.exporters.checks import session_of
from capsedge.graph.cleaning import remove_unused_tensors
from capsedge.graph.functions import attach_functions
from capsedge.graph.proto import captured_by, copy_of, replace
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import UnknownShapeError, shapes_of
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import ROUTING_OPERATORS, WINDOWS

_MOST_PLACES = 4096
_TURNS = 3  # a child that is zero at one value of its place may not be at another

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ChildMap:
    """The map that children lie on.

    Attributes:
        grid: its rows and columns.
        types_first: whether child ``i`` is ``(c * rows + y) * columns + x`` instead of
            ``(y * columns + x) * types + c``.
    """

    grid: tuple[int, int]
    types_first: bool


def child_map(
    model: onnx.ModelProto, tensor: str, inputs: Mapping[str, NDArray[Any]]
) -> ChildMap | None:
    """The map on which the capsules of a tensor lie.

    Each place of the maps that the tensor is made of, outputs of convolutions or of routing, gets other
    values; a capsule that only one place changes lies there.

    Args:
        model: a graph of ``capsedge`` nodes without functions.
        tensor: capsules ``[N, ..., P]``, all axes between counted as one.
        inputs: of the graph, an example.

    Returns:
        None where there is no such map, a capsule is made of several places, or they are in another order.
    """
    part = _Part(model, tensor)
    if part.grid is None or not 1 < np.prod(part.grid) <= _MOST_PLACES:
        return None
    try:
        changed = part.changed_by_place(inputs)
    except (CapsedgeError, UnknownShapeError):  # the part does not run on its own
        return None
    if (changed.sum(axis=0) != 1).any():
        return None
    places = changed.argmax(axis=0)
    types = len(places) // len(changed)
    for types_first, order in (
        (False, np.repeat(np.arange(len(changed)), types)),
        (True, np.tile(np.arange(len(changed)), types)),
    ):
        if np.array_equal(places, order):
            return ChildMap(part.grid, types_first)
    return None


class _Part:
    """The nodes between maps and a tensor.

    Attributes:
        grid: rows and columns of all maps; None if they differ or there are none.
        maps: sizes of each, behind the batch, by its name; and the axes of rows and columns.
    """

    def __init__(self, model: onnx.ModelProto, tensor: str) -> None:
        self.model, self.tensor = model, tensor
        shapes = shapes_of(model)
        made = {o: node for node in model.graph.node for o in node.output}
        self.maps: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {}
        inside: set[int] = set()
        rest, seen = [tensor], {tensor}
        while rest:
            name = rest.pop()
            node = made.get(name)
            if node is None:  # an input of the graph, or a constant
                continue
            found = _map_of(node, name, shapes) if name != tensor else None
            if found is not None:
                self.maps[name] = found
                continue
            inside.add(id(node))
            read = {*node.input, *captured_by(node)} - {"", *seen}
            seen |= read
            rest += read
        self.nodes = [node for node in model.graph.node if id(node) in inside]
        grids = {tuple(sizes[a - 1] for a in axes) for sizes, axes in self.maps.values()}
        self.grid: tuple[int, int] | None = None
        if len(grids) == 1:
            rows, columns = grids.pop()
            self.grid = (rows, columns)

    def changed_by_place(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Whether other values at a place change a capsule ``[places, capsules]``."""
        assert self.grid is not None
        model = copy_of(self.model)
        replace(model.graph.node, self.nodes)
        ports = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, *sizes])
            for name, (sizes, _) in self.maps.items()
        ]
        model.graph.input.extend(ports)
        result = onnx.helper.make_tensor_value_info(self.tensor, onnx.TensorProto.FLOAT, None)
        replace(model.graph.output, [result])
        attach_functions(model, Rewrites.none())
        remove_unused_tensors(model)
        session = session_of(model)
        batch = len(next(iter(inputs.values())))
        found = np.zeros((int(np.prod(self.grid)), 0), bool)
        for seed in range(_TURNS):
            rng = np.random.default_rng(seed)
            values = {
                name: rng.standard_normal((2, *sizes), np.float32)
                for name, (sizes, _) in self.maps.items()
            }
            turn = np.stack(
                [
                    self._capsules(session, inputs, self._at(values, place, batch))
                    for place in [None, *np.ndindex(self.grid)]
                ]
            )
            changed = (turn[1:] != turn[0]).any(axis=-1)
            found = found | changed if found.size else changed
        return found

    def _at(
        self, values: Mapping[str, Floats], place: tuple[int, ...] | None, batch: int
    ) -> dict[str, Floats]:
        """The maps of one image, with the second values at a place."""
        given = {}
        for name, (one, other) in values.items():
            whole = one.copy()
            if place is not None:
                at: list[Any] = [slice(None)] * whole.ndim
                for axis, index in zip(self.maps[name][1], place, strict=True):
                    at[axis - 1] = index
                whole[tuple(at)] = other[tuple(at)]
            given[name] = np.repeat(whole[None], batch, axis=0)
        return given

    def _capsules(
        self, session: Any, inputs: Mapping[str, NDArray[Any]], maps: Mapping[str, Floats]
    ) -> Floats:
        """``[capsules, P]`` of the first image."""
        (found,) = session.run([self.tensor], {**inputs, **maps})
        return np.asarray(found[0].reshape(-1, found.shape[-1]), np.float32)


def _map_of(
    node: onnx.NodeProto, name: str, shapes: Mapping[str, Sequence[int | None]]
) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """Sizes of a map behind the batch, and its axes of rows and columns; None for another tensor."""
    if node.op_type == "Conv" and not node.domain and len(shapes.get(name, ())) == 4:
        axes = (2, 3)
    elif _routes_to_a_map(node):
        axes = (1, 2)
    else:
        return None
    sizes = [size or 0 for size in shapes.get(name, ())[1:]]
    return (tuple(sizes), axes) if len(sizes) >= max(axes) and all(sizes) else None


def _routes_to_a_map(node: onnx.NodeProto) -> bool:
    spec = ROUTING_OPERATORS.get(operator_of(node.op_type))
    return node.domain == DOMAIN and spec is not None and spec.layout is WINDOWS
