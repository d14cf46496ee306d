"""Find which axis of every tensor counts the images, node by node.

``batch_axis_rules`` defines what each operator does with that axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from capsedge.graph import ir
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.ir import Graph

NAME = "N"
END = np.iinfo(np.int64).max  # end of a slice that reaches to the end of the axis


@dataclass(frozen=True)
class BatchAxis:
    """The axis on which a tensor counts images; it has ``outer`` times images times ``inner`` elements.

    Attributes:
        row: index of the image, for a tensor that holds only one; None if it holds all.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    row: int | None = None

    @property
    def pure(self) -> bool:
        """Whether the axis counts nothing else."""
        return self.outer == self.inner == 1

    def moved(self, by: int) -> BatchAxis:
        """The same axis with other axes before it."""
        return replace(self, axis=self.axis + by)


class BatchFreeing:
    """A walk over the nodes that frees the batch.

    Args:
        last: if several axes of size 1 may count the images after a Reshape, take the last, not the first.

    Attributes:
        graph, batch: the original graph, and its batch size.
        batch_axes: the batch axis of every tensor that depends on the input.
        nodes, stored: nodes and constants of the new graph.
    """

    def __init__(self, graph: Values, last: bool) -> None:
        self.graph, self.batch, self.last = graph, graph.batch, last
        self.batch_axes: dict[str, BatchAxis] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, Array] = {}
        self.node = onnx.NodeProto()

    def model(self, rules: Mapping[str, Callable[[BatchFreeing], None]]) -> onnx.ModelProto:
        """The new model.

        Args:
            rules: by operator type, what the operator does with the image axis.

        Raises:
            NoMatch: the batch cannot be freed; gives the reason and the node.
        """
        for name, dims in self.graph.dims.items():
            if not dims or dims[0] not in (0, self.batch):
                raise NoMatch(f"the input '{name}' does not begin with the batch")
            self.batch_axes[name] = BatchAxis(0)
        for node in self.graph.nodes:
            if not node.output or all(o in self.graph.constant for o in node.output if o):
                continue
            self.node = node
            rule = rules.get(node.op_type)
            if node.domain not in ("", "ai.onnx") or rule is None:
                raise self.wrong(f"it is not known how the batch passes through {node.op_type}")
            rule(self)
        return self._made()

    def wrong(self, why: str) -> NoMatch:
        """An error that gives the reason and names the node."""
        node = self.node
        return NoMatch(f"{why} (node '{node.name or node.output[0]}', {node.op_type})")

    # Queries for the rules.

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor at the file's own batch size."""
        return self.graph.shapes[name]

    def images(self, batch_axis: BatchAxis) -> int:
        """How many images a tensor holds."""
        return self.batch if batch_axis.row is None else 1

    def varying(self) -> list[str]:
        """The node's inputs that depend on the images."""
        return [i for i in self.node.input if i in self.batch_axes]

    def only(self) -> BatchAxis:
        """The batch axis of the first input, the only one that depends on the images."""
        if self.varying() != [self.node.input[0]]:
            raise self.wrong("more than its first input depends on the image")
        return self.batch_axes[self.node.input[0]]

    def value(self, k: int) -> Array | None:
        """A constant input; None if it is omitted."""
        if k >= len(self.node.input) or not self.node.input[k]:
            return None
        if self.node.input[k] in self.batch_axes:
            raise self.wrong("its sizes depend on the image")
        return np.asarray(self.graph.value[self.node.input[k]])

    # Actions for the rules.

    def keep(self, *batch_axes: BatchAxis, inputs: Sequence[str] | None = None) -> None:
        """Copy the node, optionally with other inputs; one batch axis for all outputs, or one each."""
        copy = onnx.NodeProto()
        copy.CopyFrom(self.node)
        if inputs is not None:
            ir.replace_repeated(copy.input, inputs)
        self.nodes.append(copy)
        for k, name in enumerate(filter(None, self.node.output)):
            self.batch_axes[name] = batch_axes[min(k, len(batch_axes) - 1)]

    def put(self, op_type: str, inputs: Sequence[str], batch_axis: BatchAxis) -> None:
        """Replace this node with another."""
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [self.node.output[0]], name=self.node.name)
        )
        self.batch_axes[self.node.output[0]] = batch_axis

    def store(self, value: Array) -> str:
        """Add a constant."""
        name = f"{self.node.output[0]}/free{len(self.stored)}"
        self.stored[name] = value
        return name

    def viewed(self, source: str) -> None:
        """Replace this node with a Reshape: the order of the elements, and so of the images, is unchanged."""
        batch_axis = self.batch_axes[source]
        at = self.follow_reshape(batch_axis, self.shape(source), self.shape(self.node.output[0]))
        target = list(self.shape(self.node.output[0]))
        if 0 in target:
            raise self.wrong("it has no elements")
        target[at.axis] = -1
        self.put("Reshape", [source, self.store(np.array(target, np.int64))], at)

    def follow_reshape(
        self, batch_axis: BatchAxis, old: Sequence[int], new: Sequence[int]
    ) -> BatchAxis:
        """The batch axis after the same elements are given another shape."""
        images = self.images(batch_axis)
        before = math.prod(old[: batch_axis.axis]) * batch_axis.outer
        found = []
        for axis, size in enumerate(new):
            ahead = math.prod(new[:axis])
            outer, rest = divmod(before, ahead or 1)
            if ahead and not rest and size and size % (outer * images) == 0:
                found.append(BatchAxis(axis, outer, size // (outer * images), batch_axis.row))
        if not found:
            raise self.wrong("it splits the images of a batch")
        pure = [p for p in found if p.pure]
        if pure:
            return pure[-1 if self.last else 0]
        return min(found, key=lambda p: p.outer)

    def single(self, name: str, axis: int, size: int) -> str:
        """A constant for any number of images: its rows along the axis, which must be equal, reduced to one.

        Args:
            axis: the axis, counted from the end.
            size: size of the same axis in the tensor that depends on the images.
        """
        value = np.asarray(self.graph.value[name])
        axis += value.ndim
        if axis < 0 or value.shape[axis] == 1:
            return name
        if value.shape[axis] != size:
            raise self.wrong("it repeats the images of a batch")
        one = np.take(value, [0], axis)
        if not np.array_equal(
            np.broadcast_to(one, value.shape), value, equal_nan=value.dtype.kind == "f"
        ):
            raise self.wrong(f"its constant '{name}' differs from image to image")
        return self.store(one)

    def repeated(self, name: str, batch_axis: BatchAxis, like: str) -> str:
        """A constant with as many rows as there are images, for nodes that do not broadcast."""
        shape = list(self.shape(name))
        one = self.single(name, batch_axis.axis - len(shape), self.images(batch_axis))
        if not batch_axis.pure:
            raise self.wrong("its images are merged with others")
        tag = f"{self.node.output[0]}/free{len(self.nodes)}"
        shape[batch_axis.axis] = 1
        parts = [
            self.store(np.array(shape[: batch_axis.axis], np.int64)),
            f"{tag}/images",
            self.store(np.array(shape[batch_axis.axis + 1 :], np.int64)),
        ]
        axis = self.batch_axes[like].axis
        self.nodes += [
            helper.make_node("Shape", [like], [parts[1]], start=axis, end=axis + 1),
            helper.make_node("Concat", parts, [f"{tag}/shape"], axis=0),
            helper.make_node("Expand", [one, f"{tag}/shape"], [f"{tag}/rows"]),
        ]
        return f"{tag}/rows"

    def _made(self) -> onnx.ModelProto:
        copy = ir.copy_of(self.graph.model)
        graph = copy.graph
        for value in graph.input:
            value.type.tensor_type.shape.dim[0].dim_param = NAME
        for value in graph.output:
            self._open(value)
        known = {k: np.asarray(v) for k, v in self.graph.value.items() if k in self.graph.constant}
        known |= self.stored
        self._keep_integers()
        new = Graph(self.nodes)
        used = new.used - new.produced
        ir.replace_repeated(graph.node, self.nodes)
        ir.replace_repeated(
            graph.initializer,
            [ir.initializer(n, known[n]) for n in sorted(used) if n in known],
        )
        ends = [o.name for o in graph.output if o.name not in new.produced and o.name in known]
        for name in ends:
            graph.initializer.append(ir.initializer(f"{name}/stored", known[name]))
            graph.node.append(helper.make_node("Identity", [f"{name}/stored"], [name]))
        del graph.value_info[:]
        remove_dead_nodes(copy)
        return copy

    def _keep_integers(self) -> None:
        """Keep weights that are stored as integers: copy the nodes that dequantize them."""
        read = Graph(self.nodes).used & self.graph.constant - self.graph.weights.keys()
        kept = self.graph.before(name for name in read if self.graph.is_quantized(name))
        self.nodes = [*(self.graph.nodes[k] for k in kept), *self.nodes]

    def _open(self, value: onnx.ValueInfoProto) -> None:
        """Declare an output with a free batch dimension."""
        batch_axis = self.batch_axes.get(value.name)
        if batch_axis is None:
            return
        if not batch_axis.pure or batch_axis.row is not None:
            raise NoMatch(f"the output '{value.name}' has no batch axis")
        kind = value.type.tensor_type
        shape: list[int | str] = list(self.shape(value.name))
        shape[batch_axis.axis] = NAME
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind.elem_type, shape))
