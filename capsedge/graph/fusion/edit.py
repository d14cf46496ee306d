"""Build the nodes that replace fused ones, in FP32, FP16 and BF16 files.

In FP16 and BF16 files, capsule operators compute in FP32 between two casts, so no precision is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.fusion import FusedOperator, NoMatch
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.ir import (
    Graph,
    all_graphs,
    all_nodes,
    copy_of,
    initializer,
    replace_repeated,
    rewire,
    set_opset,
)
from capsedge.spec.operators import DOMAIN, OPERATORS, VERSION

# --- New nodes, with the shapes of their outputs ---

_FREE = "N"


class Edit:
    """Nodes that replace a region.

    Attributes:
        nodes, initializers, values: what is added to the graph; values have a type and a shape.
        results: tensors of the graph that the nodes compute.
        instead: the edits to apply if this one cannot be.
    """

    def __init__(self, graph: Values, tag: str) -> None:
        self.graph, self.tag = graph, tag
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self.results: list[str] = []
        self.instead: list[tuple[Edit, FusedOperator]] = []

    @property
    def reads(self) -> set[str]:
        """Tensors of the graph that the nodes read."""
        new = Graph(self.nodes, (), self.initializers)
        return new.used - new.produced - new.initializers.keys()

    def constant(self, value: Array | np.generic, name: str) -> str:
        """Add an initializer: integers as INT64, anything else as FP32."""
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
        """Add a node with one output."""
        output = output or f"{self.tag}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [output], domain=domain, **attributes)
        )
        return output

    def capsule(
        self, op_type: str, inputs: Sequence[str], results: Sequence[str] = (), **attributes: Any
    ) -> list[str]:
        """Add a capsule operator with all its attributes; its outputs are the given tensors, or new ones."""
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
        """Record the shape of a tensor whose first dimension counts images, or images times positions."""
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
        """Permute the axes, unless they are already in order."""
        return x if list(order) == sorted(order) else self.op("Transpose", [x], perm=list(order))

    def read(self, x: str, layout: Layout, shape: Sequence[int]) -> str:
        """A tensor of the graph arranged by roles, in a shape that begins with the images."""
        viewed = x
        if layout.order != tuple(sorted(layout.order)):
            viewed = self.transpose(self.reshape(x, layout.view, layout.batch), layout.order)
        return self.describe(self.reshape(viewed, shape, 0), shape)

    def write(self, x: str, layout: Layout, result: str) -> None:
        """Turn a tensor arranged by roles, images first, back into a tensor of the graph."""
        if layout.order != tuple(sorted(layout.order)):
            axes, back = layout.axes, [int(k) for k in np.argsort(layout.order)]
            x = self.transpose(self.reshape(x, axes, 0 if layout.batch is not None else None), back)
        shape = self.graph.shapes[result]
        self.reshape(x, shape, _holder(shape, layout), result)
        self.results.append(result)


def _holder(shape: tuple[int, ...], layout: Layout) -> int | None:
    """The axis of a shape that counts images, possibly among other things."""
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
    """A copy in which the edits replace their nodes; new constants that are equal are merged."""
    copy = copy_of(model)
    for edit in edits:
        former = {name: f"{name}/{edit.tag}_before" for name in edit.results}
        for node in copy.graph.node:
            rewire(node, {}, former)
        replace_repeated(copy.graph.node, in_topological_order([*copy.graph.node, *edit.nodes]))
        copy.graph.initializer.extend(edit.initializers)
        copy.graph.value_info.extend(edit.values)
        set_opset(copy, DOMAIN, VERSION)
        remove_dead_nodes(copy)
    _share(copy, {t.name for edit in edits for t in edit.initializers})
    return copy


def _share(model: onnx.ModelProto, new: set[str]) -> None:
    """Drop new constants that the file already has: the passes of one layer share a weight."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    same: dict[str, str] = {}
    for tensor in model.graph.initializer:
        key = tensor.data_type, tuple(tensor.dims), tensor.raw_data
        if tensor.name not in new:
            first.setdefault(key, tensor.name)
        elif key[2]:
            same[tensor.name] = first.setdefault(key, tensor.name)
    for node in model.graph.node:
        rewire(node, same)
    kept = [t for t in model.graph.initializer if same.get(t.name, t.name) == t.name]
    replace_repeated(model.graph.initializer, kept)


def in_topological_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in topological order, otherwise in the given order.

    Raises:
        NoMatch: they form a cycle.
    """
    graph = Graph(nodes)
    needs = [graph.needs(k) for k in range(len(nodes))]
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


# --- FP16 and BF16: fuse in FP32, which represents all their values exactly, and write the original type ---

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SMALL = 1024  # maximum number of elements of a constant that may stay in FP32


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether anything in a graph is FP16 or BF16."""
    if any(v.type.tensor_type.elem_type in HALF for v in (*model.graph.input, *model.graph.output)):
        return True
    if any(t.data_type in HALF for t in model.graph.initializer):
        return True
    return any(
        (a.name in ("to", "dtype") and a.i in HALF) or (a.HasField("t") and a.t.data_type in HALF)
        for node in all_nodes(model.graph.node)
        for a in node.attribute
    )


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in FP32, under the same names."""
    copy = copy_of(model)
    for graph in all_graphs(copy.graph):
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
    """``widened``, with constants that were folded in FP16 computed in FP32 instead.

    Args:
        truth: the widened file before folding, which still has the nodes of those constants.
    """
    copy = widened(model)
    folded = Graph.of(truth.graph).produced & {t.name for t in copy.graph.initializer}
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


def between_casts(edit: Edit, kinds: Mapping[str, int]) -> None:
    """Adapt an edit of the widened graph to the original, in place, by casting what it reads and writes.

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
        rewire(node, names, names)
    for value in edit.values:
        value.name = names.get(value.name, value.name)
    edit.nodes = [*ahead, *edit.nodes, *behind]


def store_halves(model: onnx.ModelProto) -> None:
    """Store FP32 constants that FP16 represents exactly as FP16, in place; they are widened on loading."""
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
        replace_repeated(model.graph.node, [*casts, *model.graph.node])
