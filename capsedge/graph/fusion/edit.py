"""Make the nodes that replace fused ones, in FP32, FP16 and BF16 files.

Capsule operators compute in FP32 between two casts, so that the result is no less exact than the file was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.values import Array, Values, inputs_of
from capsedge.graph.proto import copy_of, initializer, replace, set_opset
from capsedge.spec.operators import DOMAIN, OPERATORS, VERSION

# --- New nodes, with the shapes of what they make ---

_FREE = "N"


class Edit:
    """Nodes that replace a region.

    Attributes:
        nodes, initializers, values: new ones; values have type and shape.
        results: tensors of the graph that the nodes make.
    """

    def __init__(self, graph: Values, tag: str) -> None:
        self.graph, self.tag = graph, tag
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self.results: list[str] = []

    @property
    def reads(self) -> set[str]:
        """Tensors of the graph that the nodes read."""
        own = {t.name for t in self.initializers} | {o for n in self.nodes for o in n.output}
        return {i for n in self.nodes for i in n.input} - own

    def constant(self, value: Array | np.generic, name: str) -> str:
        """An initializer: integers as INT64, others as FP32."""
        kind = np.int64 if np.issubdtype(np.asarray(value).dtype, np.integer) else np.float32
        full = f"{self.tag}_{name}"
        if full not in (t.name for t in self.initializers):
            self.initializers.append(initializer(full, np.ascontiguousarray(value, kind)))
        return full

    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str = "",
        *,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """A node with one output."""
        output = output or f"{self.tag}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [output], domain=domain, **attributes)
        )
        return output

    def capsule(
        self, op_type: str, inputs: Sequence[str], results: Sequence[str] = (), **attributes: Any
    ) -> list[str]:
        """A capsule operator with all its attributes; its outputs, tensors of the graph if they are given."""
        spec = OPERATORS[op_type]
        assert set(attributes) == set(spec.attribute_names), (op_type, sorted(attributes))
        outputs = list(results) or [f"{self.tag}_{name}" for name in spec.output_names]
        self.nodes.append(
            helper.make_node(
                op_type, list(inputs), outputs, f"{self.tag}", domain=DOMAIN, **attributes
            )
        )
        return outputs

    def describe(self, name: str, shape: Sequence[int]) -> str:
        """State the shape of a tensor, whose first dimension counts images, or images times positions."""
        first: Any = shape[0]
        if self.graph.free:
            first = _FREE if shape[0] == self.graph.batch else None
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, *shape[1:]])
        self.values.append(value)
        return name

    def reshape(self, x: str, shape: Sequence[int], batch: int | None, output: str = "") -> str:
        """Reshape, with -1 for a free batch."""
        wanted = [-1 if k == batch and self.graph.free else d for k, d in enumerate(shape)]
        stored = self.constant(
            np.array(wanted, np.int64), "to_" + "_".join(map(str, wanted)).replace("-1", "N")
        )
        return self.op("Reshape", [x, stored], output)

    def split(self, x: str, parts: int, axis: int) -> list[str]:
        """Equal parts along an axis."""
        outputs = [f"{self.tag}_{len(self.nodes)}_{k}" for k in range(parts)]
        self.nodes.append(helper.make_node("Split", [x], outputs, axis=axis, num_outputs=parts))
        return outputs

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """Permute the axes, if they are not in order."""
        return x if list(order) == sorted(order) else self.op("Transpose", [x], perm=list(order))

    def read(self, x: str, layout: Layout, shape: Sequence[int]) -> str:
        """A tensor of the graph by its roles, in a shape that begins with the images."""
        viewed = x
        if layout.order != tuple(sorted(layout.order)):
            viewed = self.transpose(self.reshape(x, layout.view, layout.batch), layout.order)
        return self.describe(self.reshape(viewed, shape, 0), shape)

    def write(self, x: str, layout: Layout, result: str) -> None:
        """Make a tensor of the graph of its roles, which begin with the images."""
        if layout.order != tuple(sorted(layout.order)):
            axes, back = layout.axes, [int(k) for k in np.argsort(layout.order)]
            x = self.transpose(self.reshape(x, axes, 0 if layout.batch is not None else None), back)
        shape = self.graph.shapes[result]
        self.reshape(x, shape, _holder(shape, layout), result)
        self.results.append(result)


def _holder(shape: tuple[int, ...], layout: Layout) -> int | None:
    """The axis of a shape that counts images, perhaps with more."""
    if layout.batch is None:
        return None
    ahead = int(np.prod(layout.view[: layout.batch], initial=1))
    done = 1
    for k, d in enumerate(shape):
        done *= d
        if done > ahead:
            return k
    return None


def splice(model: onnx.ModelProto, edits: Sequence[Edit]) -> onnx.ModelProto:
    """A copy with the edits in place of the nodes they replace; equal new constants are merged."""
    copy = copy_of(model)
    for edit in edits:
        for node in copy.graph.node:
            for k, name in enumerate(node.output):
                if name in edit.results:
                    node.output[k] = f"{name}/{edit.tag}_before"
        replace(copy.graph.node, in_order([*copy.graph.node, *edit.nodes]))
        copy.graph.initializer.extend(edit.initializers)
        copy.graph.value_info.extend(edit.values)
        set_opset(copy, DOMAIN, VERSION)
        remove_dead_nodes(copy)
    _share(copy, {t.name for edit in edits for t in edit.initializers})
    return copy


def _share(model: onnx.ModelProto, new: set[str]) -> None:
    """Leave out new constants that the file has already: the passes of one layer have the same weight."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    same: dict[str, str] = {}
    for tensor in model.graph.initializer:
        key = tensor.data_type, tuple(tensor.dims), tensor.raw_data
        if tensor.name not in new:
            first.setdefault(key, tensor.name)
        elif key[2]:
            same[tensor.name] = first.setdefault(key, tensor.name)
    for node in model.graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = same.get(name, name)
    kept = [t for t in model.graph.initializer if same.get(t.name, t.name) == t.name]
    replace(model.graph.initializer, kept)


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in topological order, otherwise in the given order.

    Raises:
        NoMatch: some read from each other in a circle.
    """
    maker = {o: k for k, n in enumerate(nodes) for o in n.output if o}
    needs = [sorted({maker[i] for i in read if i in maker}) for read in map(inputs_of, nodes)]
    done: set[int] = set()
    begun: set[int] = set()
    found: list[onnx.NodeProto] = []
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            missing = [k for k in needs[stack[-1]] if k not in done]
            if missing:
                begun.add(stack[-1])
                if not begun.isdisjoint(missing):
                    raise NoMatch("its nodes would form a cycle")
                stack += missing[::-1]
                continue
            last = stack.pop()
            if last not in done:
                done.add(last)
                found.append(nodes[last])
    return found


# --- FP16 and BF16: fused in FP32, which holds all their numbers, written in their types ---

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SMALL = 1024  # elements of a constant that may stay in FP32


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether anything in a graph is FP16 or BF16."""
    if any(v.type.tensor_type.elem_type in HALF for v in (*model.graph.input, *model.graph.output)):
        return True
    if any(t.data_type in HALF for t in model.graph.initializer):
        return True
    return any(
        (a.name in ("to", "dtype") and a.i in HALF) or (a.HasField("t") and a.t.data_type in HALF)
        for node in _nodes(model.graph)
        for a in node.attribute
    )


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in FP32, under the same names."""
    copy = copy_of(model)
    for graph in _graphs(copy.graph):
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in HALF:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for tensor in graph.initializer:
            _widen(tensor)
        for tensor in (a.t for node in graph.node for a in node.attribute if a.HasField("t")):
            _widen(tensor)
        for attribute in (a for node in graph.node for a in node.attribute):
            if attribute.name in ("to", "dtype") and attribute.i in HALF:
                attribute.i = TensorProto.FLOAT
        del graph.value_info[:]
    return copy


def widened_as(model: onnx.ModelProto, truth: onnx.ModelProto) -> onnx.ModelProto:
    """``widened``, what was folded in FP16 as it is in FP32.

    Args:
        truth: the widened file before it was folded, which has nodes for what is constant now.
    """
    copy = widened(model)
    folded = {o for n in truth.graph.node for o in n.output} & {
        t.name for t in copy.graph.initializer
    }
    try:
        values = Values(truth) if folded else None
    except NoMatch:
        values = None
    for tensor in copy.graph.initializer:
        if values is not None and tensor.name in folded & values.constant:
            value = np.asarray(values.value[tensor.name])
            if tensor.data_type == TensorProto.FLOAT and value.shape == tuple(tensor.dims):
                tensor.CopyFrom(initializer(tensor.name, value))
    return copy


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALF:
        name = tensor.name
        tensor.CopyFrom(initializer(name, numpy_helper.to_array(tensor).astype(np.float32)))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for each in _graphs(graph):
        yield from each.node


def between_casts(edit: Edit, kinds: Mapping[str, int]) -> None:
    """Make an edit of the widened graph one of the original: casts where it reads and makes halves, in place.

    Args:
        kinds: element type of every tensor of the original.
    """
    names: dict[str, str] = {}
    ahead, behind = [], []
    for name in sorted(edit.reads):
        if kinds.get(name) in HALF:
            names[name] = f"{edit.tag}_wide_{len(names)}"
            ahead.append(helper.make_node("Cast", [name], [names[name]], to=TensorProto.FLOAT))
    for name in edit.results:
        if kinds.get(name) in HALF:
            names[name] = f"{edit.tag}_wide_{len(names)}"
            behind.append(helper.make_node("Cast", [names[name]], [name], to=kinds[name]))
    for node in edit.nodes:
        replace(node.input, [names.get(i, i) for i in node.input])
        replace(node.output, [names.get(o, o) for o in node.output])
    for value in edit.values:
        value.name = names.get(value.name, value.name)
    edit.nodes = [*ahead, *edit.nodes, *behind]


def store_halves(model: onnx.ModelProto) -> None:
    """Store FP32 constants that FP16 holds exactly as FP16, widened when the file is loaded, in place."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < _SMALL:
            continue
        value = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            half = value.astype(np.float16)
        if np.array_equal(half.astype(np.float32), value):
            name = tensor.name
            tensor.CopyFrom(initializer(f"{name}/half", half))
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    if casts:
        replace(model.graph.node, [*casts, *model.graph.node])
