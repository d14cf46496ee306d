"""Merge two graphs made at different sizes of an axis into one in which the axis is free.

Numbers that are equal in both are kept. A number that depends on the size is computed from the input, as is
an array that the original graph computes from sizes alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.ir import Graph, copy_of, has_inner_graphs, initializer, replace_repeated
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

Integers = NDArray[np.int64]


class GraphsDiffer(ValueError):
    """The graphs differ in more than numbers that depend on the size."""


@dataclass(frozen=True)
class FreeAxis:
    """The axis whose size differs.

    Attributes:
        name: name of the free dimension.
        sizes: its sizes in the two graphs.
        source: the input that has the axis; empty for the first.
        axis: its position in that input.
    """

    name: str
    sizes: tuple[int, int]
    source: str = ""
    axis: int = 0

    def fits(self, a: onnx.TensorShapeProto.Dimension, b: onnx.TensorShapeProto.Dimension) -> bool:
        """Whether dimensions of the two graphs are equal, or belong to this axis."""
        return a.dim_value == b.dim_value or (a.dim_value, b.dim_value) == self.sizes


def merge(
    small: onnx.ModelProto,
    large: onnx.ModelProto,
    free: FreeAxis,
    original: onnx.ModelProto | None = None,
) -> onnx.ModelProto:
    """The graph in which every integer that differs is computed from the size of the input.

    A number that is ``a`` at one size and ``b`` at the other is a multiple of the size plus a constant; it is
    determined from the two values. The nodes are the same, because the code has no branches on the size.

    Args:
        original: the graph for any size from which the two were made.

    Raises:
        GraphsDiffer: nodes, attributes or weights differ, or a number is not a multiple of the size plus a
            constant.
    """
    model, other = (_constants_stored(copy_of(m)) for m in (small, large))
    if len(model.graph.node) != len(other.graph.node):
        raise GraphsDiffer(f"the number of nodes depends on {free.name}")
    graph, stored = Graph.of(model.graph), Graph.of(other.graph).initializers
    twins = _twins(graph, stored, other.graph.node, free.name)
    if twins.keys() != graph.initializers.keys() or len(twins) != len(stored):
        raise GraphsDiffer(f"the constants depend on {free.name}")
    made = _Computed(free, free.source or model.graph.input[0].name)
    arrays = None if original is None else SizeNodes(original, model)
    kept: list[onnx.TensorProto] = []
    for tensor in graph.initializers.values():
        a, b = (numpy_helper.to_array(t) for t in (tensor, stored[twins[tensor.name]]))
        if (
            a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        ):
            kept.append(tensor)
            continue
        if a.shape != b.shape and _is_prior(graph, tensor.name) and _same_rows(a, b):
            kept.append(initializer(tensor.name, a[:1]))
            continue
        if a.shape != b.shape and arrays is not None and arrays.add(tensor.name):
            continue
        times, plus = _line(tensor.name, a, b, free)
        if times.ndim == 1 and _one(times, plus) and _only_reshapes(graph, tensor.name):
            kept.append(initializer(tensor.name, np.where(times != 0, -1, a)))
            continue
        made.add(tensor.name, times, plus)
    stored_arrays, array_nodes = ([], []) if arrays is None else (arrays.stored, arrays.nodes)
    replace_repeated(model.graph.initializer, [*kept, *made.stored, *stored_arrays])
    replace_repeated(model.graph.node, [*made.nodes, *array_nodes, *model.graph.node])
    _merge_shapes(model, other, free)
    return model


def with_names_of(first: onnx.ModelProto, other: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """A graph made at other sizes with the first one's names of constants, which may contain the sizes.

    Numbers that are computed get the names of their constants, and the graphs of further sizes must agree.

    Args:
        what: what the sizes are of, in errors.

    Raises:
        GraphsDiffer: nodes differ.
    """
    mine, its = (_constants_stored(copy_of(m)) for m in (first, other))
    stored = Graph.of(its.graph).initializers
    twins = _twins(Graph.of(mine.graph), stored, its.graph.node, what)
    names = {theirs: own for own, theirs in twins.items()}
    if names.keys() != stored.keys():
        raise GraphsDiffer(f"the constants depend on {what}")
    for tensor in its.graph.initializer:
        tensor.name = names[tensor.name]
    for node in its.graph.node:
        for k, read in enumerate(node.input):
            node.input[k] = names.get(read, read)
    return its


def _merge_shapes(model: onnx.ModelProto, other: onnx.ModelProto, free: FreeAxis) -> None:
    """The free dimension in the shapes of the model, in place; a multiple of it gets no name."""
    theirs = {v.name: v for v in other.graph.value_info}
    kept = []
    for value in model.graph.value_info:
        shape = value.type.tensor_type.shape.dim
        found = theirs.get(value.name)
        dims = [] if found is None else found.type.tensor_type.shape.dim
        if len(dims) == len(shape) and found is not None:
            _name(value, found, free)
            kept.append(value)
    replace_repeated(model.graph.value_info, kept)
    for mine, its in zip(_values(model), _values(other), strict=True):
        if not all(map(free.fits, *(v.type.tensor_type.shape.dim for v in (mine, its)))):
            raise GraphsDiffer(f"a dimension of {mine.name} is a multiple of {free.name}")
        _name(mine, its, free)


def _name(mine: onnx.ValueInfoProto, its: onnx.ValueInfoProto, free: FreeAxis) -> None:
    dims = (v.type.tensor_type.shape.dim for v in (mine, its))
    for d, e in zip(*dims, strict=True):
        if d.dim_value != e.dim_value:
            named = free.fits(d, e)
            d.Clear()
            if named:
                d.dim_param = free.name


def _twins(
    graph: Graph,
    stored: Container[str],
    others: Iterable[onnx.NodeProto],
    what: str,
) -> dict[str, str]:
    """Map every constant to its name in the other graph; names may contain the size.

    Args:
        stored: the constants of the other graph.
        others: its nodes.
        what: what differs.

    Raises:
        GraphsDiffer: the nodes are not the same.
    """
    mine = graph.initializers
    twins = {name: name for name in mine if name in stored and name not in graph.used}
    for a, b in zip(graph.nodes, others, strict=True):
        if _key(a) != _key(b) or len(a.input) != len(b.input):
            raise GraphsDiffer(f"{a.op_type} {a.name} depends on {what}")
        for x, y in zip(a.input, b.input, strict=True):
            if (x in mine) != (y in stored) or (x not in mine and x != y):
                raise GraphsDiffer(f"{a.op_type} {a.name} depends on {what}")
            if x in mine and twins.setdefault(x, y) != y:
                raise GraphsDiffer(f"the constant {x} depends on {what}")
    return twins


def _values(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    yield from model.graph.input
    yield from model.graph.output


def _constants_stored(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn Constant nodes into initializers."""
    left = []
    for node in model.graph.node:
        if node.op_type == "Constant" and not node.domain:
            attribute = node.attribute[0]
            value = helper.get_attribute_value(attribute)
            array = numpy_helper.to_array(value) if attribute.name == "value" else np.asarray(value)
            if array.dtype == np.float64 and attribute.name != "value":
                array = array.astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        else:
            left.append(node)
    replace_repeated(model.graph.node, left)
    return model


def _key(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
    return node.op_type, node.domain, tuple(node.output), attributes


def _is_prior(graph: Graph, name: str) -> bool:
    """Whether a constant is only used as start logits of routing, for which one row represents all."""
    for node in graph.users(name):
        if node.domain != DOMAIN:
            return False
        names = OPERATORS[operator_of(node.op_type)].input_names
        used_as = dict(zip(names, node.input, strict=False))
        if [role for role, read in used_as.items() if read == name] != ["log_prior"]:
            return False
    return True


def _same_rows(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    return bool(a.shape[1:] == b.shape[1:] and (a == a[:1]).all() and (b == a[:1]).all())


def _line(
    name: str, a: NDArray[np.generic], b: NDArray[np.generic], free: FreeAxis
) -> tuple[Integers, Integers]:
    """``a = times·size + plus``."""
    if a.shape != b.shape or a.dtype != np.int64 or b.dtype != np.int64:
        raise GraphsDiffer(f"the constant {name} depends on {free.name}")
    whole_a, whole_b = a.astype(np.int64), b.astype(np.int64)
    times, rest = np.divmod(whole_b - whole_a, free.sizes[1] - free.sizes[0])
    if rest.any():
        raise GraphsDiffer(f"the constant {name} does not follow {free.name}")
    return times, whole_a - times * free.sizes[0]


def _one(times: Integers, plus: Integers) -> bool:
    """Whether a shape has one dimension that is a multiple of the size, and no other that is inferred."""
    one = np.count_nonzero(times) == 1
    return bool(one and not plus[times != 0].any() and (plus >= 0).all())


def _only_reshapes(graph: Graph, name: str) -> bool:
    """Whether a shape, or a part to be concatenated with known sizes, is used only by Reshapes."""
    for node in graph.users(name):
        if node.op_type == "Concat":
            others = [i for i in node.input if i != name]
            known = all(_is_positive(graph, i) for i in others)
            if not known or len(others) + 1 != len(node.input):
                return False
            if not _only_reshapes(graph, node.output[0]):
                return False
        elif node.op_type != "Reshape" or node.input[1] != name:
            return False
    return True


def _is_positive(graph: Graph, name: str) -> bool:
    """Whether a value is a stored shape without 0 or -1."""
    stored = graph.initializers.get(name)
    whole = stored is not None and stored.data_type == TensorProto.INT64
    return whole and bool((graph.array(name) > 0).all())


@dataclass
class _Computed:
    """Nodes that compute numbers from the size.

    Attributes:
        source: the input whose size is read.
        nodes, stored: new ones.
    """

    free: FreeAxis
    source: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, name: str, times: Integers, plus: Integers) -> None:
        """Add nodes that compute ``times·size + plus`` under this name."""
        axis = self.free.axis
        self.stored += [initializer(f"{name}/times", times), initializer(f"{name}/plus", plus)]
        size = f"{name}/{'length' if axis else 'batch'}"
        self.nodes.append(
            helper.make_node("Shape", [self.source], [size], start=axis, end=axis + 1)
        )
        if times.ndim == 0:
            self.stored.append(initializer(f"{name}/scalar", np.zeros(0, np.int64)))
            self.nodes.append(
                helper.make_node("Reshape", [size, f"{name}/scalar"], [f"{name}/one"])
            )
            size = f"{name}/one"
        self.nodes += [
            helper.make_node("Mul", [size, f"{name}/times"], [f"{name}/product"]),
            helper.make_node("Add", [f"{name}/product", f"{name}/plus"], [name]),
        ]


FOLDED = "/constant"  # suffix of the name of a computed tensor's value
_PREFIX = "sizes"  # begins the names of copies


class SizeNodes:
    """Copies of such nodes, to be put into another graph with the same inputs.

    Args:
        model: the graph that has the nodes.
        target: the graph that they are for, which may have earlier copies.

    Attributes:
        nodes: copied so far, in the order of the graph.
        stored: the constants that they read.
    """

    def __init__(self, model: onnx.ModelProto, target: onnx.ModelProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self._graph = Graph.of(model.graph)
        self._inputs = {value.name for value in model.graph.input}
        self._constants = self._graph.initializers
        self._copied: set[str | int] = set()  # constants by name, nodes by number
        present = {name.partition("/")[0] for n in target.graph.node for name in n.output}
        names = (f"{_PREFIX}{n or ''}" for n in itertools.count())
        self._prefix = next(name for name in names if name not in present) + "/"

    def add(self, name: str) -> bool:
        """Copy the nodes that compute a tensor or its folded value; returns whether sizes determine it."""
        computed = name if name in self._graph.produced else name.removesuffix(FOLDED)
        needed = self._needed(computed)
        if not needed:
            return False
        for k in sorted(needed - self._copied):
            self._copied.add(k)
            self.nodes.append(self._copy(self._graph.nodes[k]))
        self.nodes.append(onnx.helper.make_node("Identity", [self._prefix + computed], [name]))
        return True

    def _needed(self, name: str) -> set[int]:
        """Indices of the nodes that compute a tensor; none if it depends on values of an input."""
        found: set[int] = set()
        waiting = [name]
        while waiting:
            k = self._graph.position(waiting.pop())
            if k is None or has_inner_graphs(self._graph.nodes[k]):
                return set()
            if k in found:
                continue
            found.add(k)
            node = self._graph.nodes[k]
            values = [r for r in node.input if r and r not in self._constants]
            if node.op_type != "Shape" or values[0] not in self._inputs:
                waiting += values
        return found

    def _copy(self, node: onnx.NodeProto) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = self._prefix + node.output[0]
        for k, read in enumerate(node.input):
            if read in self._constants and read not in self._copied:
                self._copied.add(read)
                self.stored.append(onnx.TensorProto())
                self.stored[-1].CopyFrom(self._constants[read])
                self.stored[-1].name = self._prefix + read
            if read and read not in self._inputs:
                copy.input[k] = self._prefix + read
        for k, made in enumerate(node.output):
            copy.output[k] = self._prefix + made
        return copy
