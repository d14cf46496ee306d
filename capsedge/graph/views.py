"""Views: nodes that give a tensor another shape and reorder nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from capsedge.graph.bodies import Shape
from capsedge.graph.cleaning import captured, remove_dead_nodes
from capsedge.graph.proto import constants_of
from capsedge.graph.shapes import inferred, shapes_of
from capsedge.schema.names import DOMAIN

_UNBOUNDED = 2**31 - 1  # a Slice that ends there or later takes all that there is


def merge_views(model: onnx.ModelProto) -> dict[str, str]:
    """One Reshape with a constant target for every chain of views, in place.

    Views are Reshape, Squeeze, Unsqueeze, Flatten, a Transpose that moves dimensions of 1 only, and a Slice
    that takes everything. One whose shape is not known but for the batch stays what it is, without
    ``allowzero`` where that says nothing.

    Returns:
        For every view that is left, the tensor that it is a view of.
    """
    graph = model.graph
    constants = constants_of(model)
    complete = inferred(model)
    shapes = shapes_of(complete)
    kept = {o.name for o in graph.output} | captured(graph)
    origin: dict[str, str] = {}
    same: dict[str, str] = {}  # a tensor -> the equal one used instead
    known: dict[tuple[str, tuple[int, ...]], str] = {}  # (origin, target) -> the first view of them
    targets = _Targets(graph)
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = same.get(name, name)
        if not _is_view(node, shapes, constants):
            continue
        y = node.output[0]
        shape = shapes.get(y)
        target = _target(shape, constants.get(node.input[1]) if len(node.input) > 1 else None)
        if target is None:
            continue
        if shape is None:
            del node.attribute[:]  # allowzero is the only one
            continue
        x = origin.get(node.input[0], node.input[0])
        equal = x if shapes.get(x) == shape else known.setdefault((x, target), y)
        if equal != y and y not in kept:
            same[y] = equal
            continue
        origin[y] = x
        made = helper.make_node("Reshape", [x, targets.name(target)], [y], name=node.name)
        node.CopyFrom(made)
    targets.store()
    described = {v.name for v in graph.value_info}
    graph.value_info.extend(
        v for v in complete.graph.value_info if v.name in same.values() and v.name not in described
    )
    remove_dead_nodes(model, DOMAIN)
    return origin


class _Targets:
    """The constant targets of Reshapes, each stored once."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.names: dict[tuple[int, ...], str] = {}
        self.taken = {i for n in graph.node for i in (*n.input, *n.output)}
        self.old = {t.name: t for t in graph.initializer}

    def name(self, target: tuple[int, ...]) -> str:
        if target not in self.names:
            name = "shape_" + "_".join("N" if d == -1 else str(d) for d in target)
            while name in self.taken and not self._holds(name, target):
                name += "_"
            self.names[target] = name
        return self.names[target]

    def _holds(self, name: str, target: tuple[int, ...]) -> bool:
        tensor = self.old.get(name)
        return tensor is not None and numpy_helper.to_array(tensor).tolist() == list(target)

    def store(self) -> None:
        self.graph.initializer.extend(
            numpy_helper.from_array(np.array(target, np.int64), name)
            for target, name in self.names.items()
            if name not in self.old
        )


def _is_view(
    node: onnx.NodeProto, shapes: dict[str, Shape], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    if node.domain or not node.input:
        return False
    if node.op_type == "Slice":
        return _takes_everything(node, shapes, constants)
    if node.op_type != "Transpose":
        return node.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
    shape, perm = shapes.get(node.input[0]), [int(i) for a in node.attribute for i in a.ints]
    if shape is None or len(perm) != len(shape):
        return False
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved)


def _takes_everything(
    node: onnx.NodeProto, shapes: dict[str, Shape], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a Slice, of opset 10 or later, leaves nothing out."""
    shape = shapes.get(node.input[0])
    given = [constants[name] for name in node.input[1:] if name in constants]
    if (
        shape is None
        or shapes.get(node.output[0]) != shape
        or len(given) != max(2, len(node.input) - 1)
    ):
        return False
    starts, ends, *more = ([int(v) for v in numpy_helper.to_array(each)] for each in given)
    axes = more[0] if more else list(range(len(starts)))
    steps = more[1] if len(more) > 1 else [1] * len(starts)
    return all(
        start == 0 and step == 1 and end >= (shape[axis] or _UNBOUNDED)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    )


def _target(shape: Shape | None, constant: onnx.TensorProto | None) -> tuple[int, ...] | None:
    """The target of a Reshape; None where the node must stay what it is."""
    if shape is not None:
        several = shape.count(None) > 1 or 0 in shape
        return None if several else tuple(-1 if d is None else d for d in shape)
    values = () if constant is None else tuple(numpy_helper.to_array(constant).reshape(-1).tolist())
    return None if constant is None or 0 in values else values
