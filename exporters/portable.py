"""The forms of standard operators that every ONNX runtime reads alike, exact and as fast.

- A chain of views is one Reshape with a constant target, without ``allowzero`` and without 0 ("as the
  input"); where the batch is fixed, without -1 too. LiteRT and onnx2torch need that.
- Norms are spelt out: MNN does not read the axes of ``ReduceL2`` and its like, which are an input since
  opset 18, and reduces everything.
- The norm of poses is taken before they get their last shape: MNN squares that output in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.exporters import proto
from capsedge.exporters.bodies import Shape
from capsedge.exporters.operators import DOMAIN

COMPOSITE = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def use_portable_forms(model: onnx.ModelProto) -> None:
    """Write the graph's nodes in the forms above, in place; dead nodes of the domain ``capsedge`` stay."""
    nodes = _Writer(model).nodes()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    proto.remove_dead_nodes(model, DOMAIN)
    settle_shapes(model)


def settle_shapes(model: onnx.ModelProto) -> None:
    """One Reshape with a constant target for every chain of views, in place.

    A view reorders nothing: Reshape, Squeeze, Unsqueeze, Flatten, and a Transpose that moves dimensions of
    1 only. One whose shape is not known but for the batch stays as it is, a Reshape without ``allowzero``
    where that says nothing.
    """
    graph = model.graph
    constants = proto.constants_of(model)
    inferred = proto.inferred(model)
    shapes = proto.shapes_of(inferred)
    outputs = {o.name for o in graph.output}
    origin: dict[str, str] = {}  # a view -> what it is a view of
    same: dict[str, str] = {}  # a tensor -> the equal one used instead
    known: dict[tuple[str, tuple[int, ...]], str] = {}  # (origin, target) -> the first view of them
    targets: dict[str, onnx.TensorProto] = {}
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = same.get(name, name)
        if not _is_view(node, shapes):
            continue
        y = node.output[0]
        target = _target(shapes.get(y), constants.get(node.input[1] if len(node.input) > 1 else ""))
        if target is None:
            continue
        if y not in shapes:
            del node.attribute[:]
            continue
        x = origin.get(node.input[0], node.input[0])
        origin[y] = x
        equal = x if _equal(shapes.get(x), shapes[y]) else known.setdefault((x, target), y)
        if equal != y and y not in outputs:
            same[y] = equal
            continue
        name = "shape_" + "_".join("N" if d == -1 else str(d) for d in target)
        targets[name] = numpy_helper.from_array(np.array(target, np.int64), name)
        node.CopyFrom(helper.make_node("Reshape", [x, name], [y], name=node.name))
    old = [t for t in graph.initializer if t.name not in targets]
    del graph.initializer[:]
    graph.initializer.extend((*old, *targets.values()))
    _square_origins(graph, origin, shapes)
    described = {v.name for v in graph.value_info}
    graph.value_info.extend(
        v for v in inferred.graph.value_info if v.name in same.values() and v.name not in described
    )
    proto.remove_dead_nodes(model, DOMAIN)


def _square_origins(
    graph: onnx.GraphProto, origin: dict[str, str], shapes: dict[str, Shape]
) -> None:
    """Let norms square what their poses are a view of, where a Reshape at their end takes any shape."""
    users: dict[str, list[onnx.NodeProto]] = {}
    reshaped: set[str] = set()
    for node in graph.node:
        for name in set(node.input):
            users.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type != "Mul" or node.domain or node.input[0] != node.input[1]:
            continue
        x = origin.get(node.input[0])
        if not x or not shapes.get(x) or shapes[x][-1] != shapes[node.input[0]][-1]:
            continue
        chain, last, passed = [], node, {node.output[0]}
        while len(following := users.get(last.output[0], [])) == 1:
            last = following[0]
            chain.append(last.op_type)
            if last.op_type not in ("MatMul", "Sqrt"):
                break
            passed.update(last.output)
        if chain in (["MatMul", "Reshape"], ["MatMul", "Sqrt", "Reshape"]):
            node.input[0] = node.input[1] = x
            reshaped |= passed
    described = [v for v in graph.value_info if v.name not in reshaped]
    del graph.value_info[:]
    graph.value_info.extend(described)


def _is_view(node: onnx.NodeProto, shapes: dict[str, Shape]) -> bool:
    """Whether a node only gives its input another shape."""
    if node.domain or not node.input:
        return False
    if node.op_type != "Transpose":
        return node.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
    shape, perm = shapes.get(node.input[0]), [int(i) for a in node.attribute for i in a.ints]
    if shape is None or len(perm) != len(shape):
        return False
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved)


def _target(shape: Shape | None, constant: onnx.TensorProto | None) -> tuple[int, ...] | None:
    """The target of a Reshape; None where the node must stay as it is."""
    if shape is not None and shape.count(None) <= 1 and 0 not in shape:
        return tuple(-1 if d is None else d for d in shape)
    if shape is not None or constant is None:
        return None
    values = tuple(int(d) for d in numpy_helper.to_array(constant).reshape(-1))
    return None if 0 in values else values


def _equal(x: Shape | None, view: Shape) -> bool:
    """Whether a tensor and a view of it, which has as many elements, have one shape."""
    return x == view and view.count(None) <= 1


class _Writer:
    """Writes the nodes of a graph again, with norms spelt out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        inferred = proto.inferred(model)
        self.shapes = proto.shapes_of(inferred)
        values = (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info)
        self.types = {v.name: v.type.tensor_type.elem_type for v in values}
        self.types |= {t.name: t.data_type for t in model.graph.initializer}
        self.constants = proto.constants_of(model)
        self.producers = {o: n for n in self.graph.node for o in n.output}
        self.written: list[onnx.NodeProto] = []
        self.added: dict[str, onnx.TensorProto] = {}

    def nodes(self) -> list[onnx.NodeProto]:
        for node in self.graph.node:
            if node.op_type in COMPOSITE and not node.domain and self._axes(node):
                self._reduction(node)
            else:
                self.written.append(node)
        self.graph.initializer.extend(self.added.values())
        return self.written

    def _axes(self, node: onnx.NodeProto) -> list[int]:
        """The constant axes of a reduction of floats, from the first; none where that is not what it is."""
        x = node.input[0]
        shape = self.shapes.get(x)
        if shape is None or self.types.get(x) not in _FLOATS or len(node.input) < 2:
            return []
        axes = self.constants.get(node.input[1])
        values = [] if axes is None else numpy_helper.to_array(axes).reshape(-1).tolist()
        return sorted(int(a) % len(shape) for a in values)

    def _reduction(self, node: onnx.NodeProto) -> None:
        x, output, axes = node.input[0], node.output[0], self._axes(node)
        keepdims = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
        kind = node.op_type.removeprefix("Reduce")
        steps = _Steps(self, output, x)
        largest = ""
        if kind in ("L2", "SumSquare"):
            steps.op("Mul", x, x)
        elif kind == "L1":
            steps.op("Abs", x)
        elif kind == "LogSumExp":
            # The largest is clipped, so that an infinity among the inputs stays one.
            limit = float(np.finfo(helper.tensor_dtype_to_np_dtype(self.types[x])).max)
            steps.op("ReduceMax", x, steps.ints("axes", axes), keepdims=1)
            largest = steps.op("Clip", steps.value, *(steps.number(v) for v in (-limit, limit)))
            steps.op("Exp", steps.op("Sub", x, largest))
        last = self.shapes[x][-1]
        if axes == [len(self.shapes[x]) - 1] and last:
            # pnnx loses the axis of a ReduceSum over one axis.
            steps.op("MatMul", steps.value, steps.ones(last))
        else:
            steps.op("ReduceSum", steps.value, steps.ints("axes", axes), keepdims=1)
        if kind == "L2":
            steps.op("Sqrt", steps.value)
        elif kind in ("LogSum", "LogSumExp"):
            steps.op("Log", steps.value)
        if largest:
            steps.op("Add", steps.value, largest)
        if not keepdims:
            steps.op("Squeeze", steps.value, steps.ints("axes", axes))
        steps.end()


class _Steps:
    """The nodes that one reduction becomes, named after its output."""

    def __init__(self, writer: _Writer, output: str, like: str) -> None:
        self.writer, self.output, self.value = writer, output, like
        self.dtype = helper.tensor_dtype_to_np_dtype(writer.types[like])

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.value = f"{self.output}_{op_type.lower()}"
        self.writer.written.append(
            helper.make_node(op_type, list(inputs), [self.value], **attributes)
        )
        return self.value

    def end(self) -> None:
        """The last value is the output."""
        self.writer.written[-1].output[0] = self.output

    def ints(self, what: str, values: Sequence[int]) -> str:
        return self._constant(f"{what}_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self._constant(f"number_{value:g}", np.array(value, self.dtype))

    def ones(self, size: int) -> str:
        return self._constant(f"ones_{size}_{self.dtype}", np.ones((size, 1), self.dtype))

    def _constant(self, name: str, value: np.ndarray) -> str:
        name = f"norm_{name}"
        self.writer.added[name] = numpy_helper.from_array(value, name)
        return name
