"""New nodes for the place of recognized ones, with the shapes of what they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.proto import copy_of, initializer, replace, set_opset
from capsedge.graph.recognize.layouts import Layout
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.values import Array, Values, inputs_of_each
from capsedge.schema.names import DOMAIN, VERSION
from capsedge.schema.operators import OPERATORS

_FREE = "N"


class Edit:
    """Nodes in the place of a region.

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
        """Reshape, -1 in the place of the batch where it is free."""
        wanted = [-1 if k == batch and self.graph.free else d for k, d in enumerate(shape)]
        stored = self.constant(
            np.array(wanted, np.int64), "to_" + "_".join(map(str, wanted)).replace("-1", "N")
        )
        return self.op("Reshape", [x, stored], output)

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
    """A copy with the edits in the place of what made their results; equal new constants are one."""
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
    """Nodes after those that they read from, else in the order given.

    Raises:
        NotRecognized: some read from each other in a circle.
    """
    maker = {o: k for k, n in enumerate(nodes) for o in n.output if o}
    needs = [sorted({maker[i] for i in read if i in maker}) for read in inputs_of_each(nodes)]
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
                    raise NotRecognized("its nodes would read from each other in a circle")
                stack += missing[::-1]
                continue
            last = stack.pop()
            if last not in done:
                done.add(last)
                found.append(nodes[last])
    return found
