"""Rewrite standard operators exactly into equally fast forms that every runtime reads the same way.

- Views are Reshapes with a constant target, without ``allowzero`` and without 0 ("as the input"); if the
  batch is fixed, also without -1. LiteRT and onnx2torch require this.
- Norms are decomposed: MNN ignores the axes of ``ReduceL2`` and similar operators, which are an input since
  opset 18, and reduces over all axes.
- A sum over the last axis is a product with ones: pnnx loses the axis of a ReduceSum over one axis.
- A norm squares the tensor behind a view: MNN would square the view in place, even if it is an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.bodies import Shape
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.ir import Graph, constants_of, inferred, replace_repeated, rewire, shapes_of
from capsedge.spec.operators import DOMAIN

# --- Views: nodes that change a tensor's shape without reordering elements ---

_UNBOUNDED = 2**31 - 1  # a Slice that ends here or later takes everything


def merge_views(model: onnx.ModelProto) -> dict[str, str]:
    """Replace every chain of views with one Reshape with a constant target, in place.

    Views are Reshape, Squeeze, Unsqueeze, Flatten, a Transpose that moves dimensions of 1 only, and a Slice
    that takes everything. A view with unknown sizes besides the batch is kept, without ``allowzero`` if that
    has no effect.

    Returns:
        The source tensor of every remaining view.
    """
    graph = model.graph
    constants = constants_of(model)
    complete = inferred(model)
    shapes = shapes_of(complete)
    before = Graph.of(graph)
    kept = before.outputs | before.captured
    origin: dict[str, str] = {}
    same: dict[str, str] = {}  # a tensor -> the equal tensor used instead
    known: dict[tuple[str, tuple[int, ...]], str] = {}  # (origin, target) -> the first view of them
    targets = _Targets(before)
    for node in graph.node:
        rewire(node, same)
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
    graph.initializer.extend(targets.new())
    described = {v.name for v in graph.value_info}
    graph.value_info.extend(
        v for v in complete.graph.value_info if v.name in same.values() and v.name not in described
    )
    remove_dead_nodes(model, DOMAIN)
    return origin


class _Targets:
    """The constant targets of Reshapes, each stored once."""

    def __init__(self, graph: Graph) -> None:
        self.names: dict[tuple[int, ...], str] = {}
        self.used = graph.used | graph.produced
        self.old = graph.initializers

    def name(self, target: tuple[int, ...]) -> str:
        if target not in self.names:
            name = "shape_" + "_".join("N" if d == -1 else str(d) for d in target)
            while name in self.used and not self._holds(name, target):
                name += "_"
            self.names[target] = name
        return self.names[target]

    def _holds(self, name: str, target: tuple[int, ...]) -> bool:
        tensor = self.old.get(name)
        return tensor is not None and numpy_helper.to_array(tensor).tolist() == list(target)

    def new(self) -> list[onnx.TensorProto]:
        """Those that the graph does not store yet."""
        return [
            numpy_helper.from_array(np.array(target, np.int64), name)
            for target, name in self.names.items()
            if name not in self.old
        ]


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
    """Whether a Slice, of opset 10 or later, takes everything."""
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
    """The target of a Reshape; None if the node must be left unchanged."""
    if shape is not None:
        several = shape.count(None) > 1 or 0 in shape
        return None if several else tuple(-1 if d is None else d for d in shape)
    values = () if constant is None else tuple(numpy_helper.to_array(constant).reshape(-1).tolist())
    return None if constant is None or 0 in values else values


# --- Other forms ---

COMPOSITE = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def use_portable_forms(model: onnx.ModelProto) -> None:
    """Rewrite the graph's nodes in these forms, in place; dead nodes of the domain ``capsedge`` are kept."""
    replace_repeated(model.graph.node, _Writer(model).nodes())
    remove_dead_nodes(model, DOMAIN)
    origin = merge_views(model)
    if _square_origins(model, origin):
        merge_views(model)
    _describe(model)


def _describe(model: onnx.ModelProto) -> None:
    """State the type and shape of new values, which forecasts read from the file."""
    described = {v.name for v in (*model.graph.value_info, *model.graph.output)}
    missing = Graph.of(model.graph).produced - described
    model.graph.value_info.extend(v for v in inferred(model).graph.value_info if v.name in missing)


def _square_origins(model: onnx.ModelProto, origin: dict[str, str]) -> bool:
    """Make sums of squares read the tensor behind the view, and reshape the sums instead."""
    graph = model.graph
    shapes = shapes_of(inferred(model))
    before = Graph.of(graph)
    nodes: list[onnx.NodeProto] = []
    changed: set[str] = set()
    pending: dict[str, tuple[int, ...]] = {}
    for node in graph.node:
        nodes.append(node)
        y = node.output[0] if node.output else ""
        if y in pending:  # rewired sums of squares
            node.output[0] = f"{y}_flat"
            target = f"{y}_shape"
            graph.initializer.append(
                numpy_helper.from_array(np.array(pending[y], np.int64), target)
            )
            nodes.append(helper.make_node("Reshape", [node.output[0], target], [y]))
        if node.op_type != "Mul" or node.domain or node.input[0] != node.input[1]:
            continue
        view, following = node.input[0], before.users(y)
        source, after = shapes.get(origin.get(view, "")), shapes.get(view)
        if not source or not after or source[-1] != after[-1] or y in before.outputs:
            continue
        if len(following) != 1 or following[0].op_type != "MatMul" or following[0].input[0] != y:
            continue
        wanted = shapes.get(following[0].output[0])
        if wanted is None or wanted[-1] != 1 or wanted.count(None) > 1:
            continue
        node.input[0] = node.input[1] = origin[view]
        changed.add(y)
        pending[following[0].output[0]] = tuple(-1 if d is None else d for d in wanted)
    replace_repeated(graph.node, nodes)
    replace_repeated(graph.value_info, [v for v in graph.value_info if v.name not in changed])
    return bool(changed)


class _Writer:
    """Rewrites the nodes of a graph, with norms and sums decomposed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        complete = inferred(model)
        self.shapes = shapes_of(complete)
        values = (*complete.graph.input, *complete.graph.output, *complete.graph.value_info)
        self.types = {v.name: v.type.tensor_type.elem_type for v in values}
        self.types |= {t.name: t.data_type for t in model.graph.initializer}
        self.constants = constants_of(model)
        self.written: list[onnx.NodeProto] = []
        self.added: dict[str, onnx.TensorProto] = {}

    def nodes(self) -> list[onnx.NodeProto]:
        for node in self.graph.node:
            if node.domain or not node.input or self.types.get(node.input[0]) not in _FLOATS:
                self.written.append(node)
            elif node.op_type == "Pow" and self._exponent(node) == 2:
                self.written.append(helper.make_node("Mul", [node.input[0]] * 2, node.output[:]))
            elif (node.op_type in COMPOSITE and self._axes(node)) or self._sums_last(node):
                self._reduction(node)
            else:
                self.written.append(node)
        self.graph.initializer.extend(self.added.values())
        return self.written

    def _exponent(self, node: onnx.NodeProto) -> float | None:
        """The exponent of a power, if it is a single constant of at most one dimension."""
        tensor = self.constants.get(node.input[1])
        if tensor is None or len(tensor.dims) > 1 or numpy_helper.to_array(tensor).size != 1:
            return None
        return float(numpy_helper.to_array(tensor).reshape(-1)[0])

    def _axes(self, node: onnx.NodeProto) -> list[int]:
        """The constant axes of a reduction, counted from the first; none if it names none."""
        shape = self.shapes.get(node.input[0])
        axes = self.constants.get(node.input[1]) if len(node.input) > 1 else None
        if shape is None or axes is None:
            return []
        return sorted(int(a) % len(shape) for a in numpy_helper.to_array(axes).reshape(-1))

    def _sums_last(self, node: onnx.NodeProto) -> bool:
        """Whether a node sums over the last axis alone, and its size is known."""
        shape = self.shapes.get(node.input[0])
        if node.op_type != "ReduceSum" or not shape or not shape[-1]:
            return False
        return len(shape) > 1 and self._axes(node) == [len(shape) - 1]

    def _reduction(self, node: onnx.NodeProto) -> None:
        x, axes = node.input[0], self._axes(node)
        keepdims = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
        kind = node.op_type.removeprefix("Reduce")
        steps = _Steps(self, node.output[0], x)
        largest = ""
        if kind in ("L2", "SumSquare"):
            steps.op("Mul", x, x)
        elif kind == "L1":
            steps.op("Abs", x)
        elif kind == "LogSumExp":
            # The maximum is clipped, so that an infinite input gives an infinite result.
            limit = float(np.finfo(helper.tensor_dtype_to_np_dtype(self.types[x])).max)
            steps.op("ReduceMax", x, steps.ints(axes), keepdims=1)
            largest = steps.op("Clip", steps.value, *(steps.number(v) for v in (-limit, limit)))
            steps.op("Exp", steps.op("Sub", x, largest))
        shape = self.shapes[x]
        if axes == [len(shape) - 1] and len(shape) > 1 and shape[-1]:
            steps.op("MatMul", steps.value, steps.ones(shape[-1]))
        else:
            steps.op("ReduceSum", steps.value, steps.ints(axes), keepdims=1)
        if not keepdims and not largest:  # done here, so that it merges with other views of the sum
            steps.op("Squeeze", steps.value, steps.ints(axes))
        if kind == "L2":
            steps.op("Sqrt", steps.value)
        elif kind in ("LogSum", "LogSumExp"):
            steps.op("Log", steps.value)
        if largest:
            steps.op("Add", steps.value, largest)
            if not keepdims:
                steps.op("Squeeze", steps.value, steps.ints(axes))
        steps.end()


class _Steps:
    """The nodes that one reduction becomes, named after its output."""

    def __init__(self, writer: _Writer, output: str, like: str) -> None:
        self.writer, self.output, self.value = writer, output, like
        self.dtype = helper.tensor_dtype_to_np_dtype(writer.types[like])

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        self.value = f"{self.output}_{op_type.lower()}"
        node = helper.make_node(op_type, list(inputs), [self.value], **attributes)
        self.writer.written.append(node)
        return self.value

    def end(self) -> None:
        """The last value is the output."""
        self.writer.written[-1].output[0] = self.output

    def ints(self, values: Sequence[int]) -> str:
        return self._constant(f"axes_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self._constant(f"{value:g}", np.array(value, self.dtype))

    def ones(self, size: int) -> str:
        return self._constant(f"ones_{size}", np.ones((size, 1), self.dtype))

    def _constant(self, name: str, value: np.ndarray) -> str:
        name = f"sum_{name}_{value.dtype}"
        self.writer.added[name] = numpy_helper.from_array(value, name)
        return name
