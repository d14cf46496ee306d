"""Count the operations and bytes of an operator, and size all values of a graph.

A multiply-add is two operations. Each input and output is counted once in bytes; an operator that only
renames a tensor (a reshape) moves none. Routing is counted by its procedure (docs/reference/operators.md):
every vote once, plus the operations on it in each iteration; the extra work of a kernel that recomputes votes
in every iteration does not count.

Files state most shapes, with names for free sizes: ``N`` is the batch, ``36*N`` a multiple of it, and others
stand for products with it in inlined bodies. A name means one number everywhere, so each is
solved for from the operators that keep the number of elements, broadcast, or multiply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsedge.runtime.onnx_file.structure import BITS, GraphStructure, Node, Shape, ValueInfo
from capsedge.spec import limits
from capsedge.spec.operators import DENSE, OPERATORS, ROUTING_OPERATORS, VOTES_AS_INPUT, Operator

OperatorShape = tuple[int, ...]

VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
_MOVES = frozenset(
    ("Transpose", "Gather", "Concat", "Slice", "Split", "Expand", "Pad", "Cast", "CastLike", "Tile",
     "ReorderInput", "ReorderOutput", "Constant", "Shape", "MemcpyToHost", "MemcpyFromHost", "Where")
)  # fmt: skip
_WEIGHT_OF_CONVOLUTION = {"QLinearConv": 3, "QuantizedConv": OPERATORS["QuantizedConv"].weight}
_NORMALIZATIONS = {"Softmax": 5, "LogSoftmax": 5, "LayerNormalization": 8,
                   "SkipLayerNormalization": 9, "BatchNormalization": 2,
                   **{name: o.per_element for name, o in OPERATORS.items() if o.per_element}}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """Shape and element type of a value; ``shape`` is None if not stated."""

    type: str
    shape: OperatorShape | None

    @property
    def elements(self) -> int:
        return math.prod(self.shape) if self.shape is not None else 0

    @property
    def bytes(self) -> int:
        return (self.elements * BITS.get(self.type, 0) + 7) // 8


@dataclass(frozen=True)
class Cost:
    """Operations and bytes moved; ``known`` is False if a shape is missing."""

    operations: float
    bytes: int
    known: bool = True


def cost(node: Node, values: Mapping[str, TensorSpec]) -> Cost:
    """The operations of a node and the bytes that it moves."""
    names = [*dict.fromkeys(n for n in (*node.inputs, *node.outputs) if n)]
    known = all(n in values and values[n].shape is not None for n in names)
    moved = 0 if node.op in VIEWS else sum(values[n].bytes for n in names if n in values)
    try:
        operations = _operations(node, values)
    except (LookupError, ArithmeticError, ValueError):  # shapes that are invalid for this operator
        return Cost(0.0, moved, False)
    return Cost(operations, moved, known)


def _operations(node: Node, values: Mapping[str, TensorSpec]) -> float:
    def shape(name: str) -> OperatorShape:
        sizes = values[name].shape
        if sizes is None:
            raise KeyError(name)
        return sizes

    kind = node.operator
    if kind in VIEWS or kind in _MOVES:
        return 0.0
    if kind in ROUTING_OPERATORS:
        spec = ROUTING_OPERATORS[kind]
        children = shape(node.inputs[0])
        votes = vote_sizes_of(spec, children, shape(node.inputs[spec.weight]), node.attributes)
        iterations = spec.iterations(node.attributes)
        products = votes.depth + spec.sums * iterations + spec.agreements * (iterations - 1)
        return 2.0 * children[0] * votes.elements * products
    out = shape(node.outputs[0])
    if "ConvTranspose" in kind:
        return 2.0 * math.prod(shape(node.inputs[0])) * math.prod(shape(node.inputs[1])[1:])
    if "Conv" in kind:
        weight = shape(node.inputs[_WEIGHT_OF_CONVOLUTION.get(kind, 1)])
        return 2.0 * math.prod(out) * math.prod(weight[1:])
    if "MatMul" in kind:
        a = shape(node.inputs[0])
        return 2.0 * math.prod(out) * a[-2 if node.integer("transA", 0) else -1]
    if "Gemm" in kind:
        rows = math.prod(out[:-1])
        return 2.0 * math.prod(out) * math.prod(shape(node.inputs[0])) / max(rows, 1)
    if kind in _NORMALIZATIONS:
        return float(_NORMALIZATIONS[kind] * math.prod(out))
    if kind.startswith(("Reduce", "MaxPool", "AveragePool", "Global")):
        return float(math.prod(shape(node.inputs[0])))
    return float(math.prod(out))


# --- Sizes of all values for one batch size ---

_SAME_COUNT = frozenset(
    ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "CastLike",
     "Softmax", "LogSoftmax", "LayerNormalization")
)  # fmt: skip
_MULTIPLE = re.compile(r"([1-9][0-9]{0,9})\*([A-Za-z_]\w*)")
_ROUNDS = 3


class NumericShapes:
    """Shapes with numbers in place of names."""

    def __init__(self, graph: GraphStructure, batch: int) -> None:
        stored = {value.name for value in graph.initializers}
        everything = (*graph.values, *graph.inputs, *graph.outputs, *graph.initializers)
        self._declared: dict[str, ValueInfo] = {value.name: value for value in everything}
        self._numbers: dict[str, int] = {
            value.shape[0]: batch
            for value in graph.inputs
            if value.name not in stored and value.shape and isinstance(value.shape[0], str)
        }
        self._shapes: dict[str, tuple[int, ...]] = {}
        for _ in range(_ROUNDS):
            for node in graph.nodes:
                self._visit(node)

    def tensors(self) -> dict[str, TensorSpec]:
        """Type and shape of every value of known size."""
        tensors = {}
        for name in {*self._declared, *self._shapes}:
            shape = self.shape(name)
            if shape is not None:
                declared = self._declared.get(name)
                tensors[name] = TensorSpec(declared.type if declared else "float32", shape)
        return tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Sizes of a value; None while a name in it is unsolved."""
        if name in self._shapes:
            return self._shapes[name]
        declared = self._declared.get(name)
        if declared is None or declared.shape is None:
            return None
        numbers = [self._number(d) if isinstance(d, str) else d for d in declared.shape]
        return tuple(numbers) if all(isinstance(d, int) for d in numbers) else None  # type: ignore[arg-type]

    def _number(self, name: str) -> int | None:
        """The value of a name, or of a multiple of one: ``N``, ``36*N``."""
        if name in self._numbers:
            return self._numbers[name]
        multiple = _MULTIPLE.fullmatch(name)
        number = self._numbers.get(multiple[2]) if multiple else None
        return None if multiple is None or number is None else int(multiple[1]) * number

    def _visit(self, node: Node) -> None:
        inputs = [self.shape(name) for name in node.inputs if name]
        for output in node.outputs:
            if not output or self.shape(output) is not None or not inputs or inputs[0] is None:
                continue
            declared = self._declared.get(output)
            if declared is None or declared.shape is None:
                self._derive(node, output, inputs)
            else:
                self._solve(node, declared.shape, inputs)

    def _solve(self, node: Node, shape: Shape, inputs: list[tuple[int, ...] | None]) -> None:
        """Find the one unsolved name of an output."""
        unsolved = [d for d in shape if isinstance(d, str) and d not in self._numbers]
        first = inputs[0]
        if first is None or not unsolved:
            return
        if node.op in _SAME_COUNT and len(unsolved) == 1:
            sizes = (self._numbers.get(d) if isinstance(d, str) else d for d in shape)
            rest = math.prod(d for d in sizes if d is not None)
            if rest and math.prod(first) % rest == 0:
                self._numbers[unsolved[0]] = math.prod(first) // rest
            return
        if "MatMul" in node.op:
            second = inputs[1] if len(inputs) > 1 else None
            for row, operand, axis in ((shape[-2:-1], first, -2), (shape[-1:], second, -1)):
                if row and row[0] in unsolved and len(operand or ()) >= 2:
                    assert operand is not None
                    self._numbers.setdefault(str(row[0]), operand[axis])
            known: Iterable[tuple[int, ...]] = [i[:-2] for i in inputs if i is not None]
            target: Shape = shape[:-2]
        elif node.op.startswith("Reduce"):
            axis = shape.index(unsolved[0])
            if axis < len(first):
                self._numbers.setdefault(unsolved[0], first[axis])
            return
        else:
            known, target = [i for i in inputs if i is not None], shape
        for axis, dimension in enumerate(target):
            if dimension not in unsolved or not isinstance(dimension, str):
                continue
            back = len(target) - axis
            known_sizes = [i[-back] for i in known if len(i) >= back]
            if known_sizes:
                self._numbers.setdefault(dimension, max(known_sizes))

    def _derive(self, node: Node, output: str, inputs: list[tuple[int, ...] | None]) -> None:
        """A shape that the file does not state."""
        first = inputs[0]
        if first is None:
            return
        if node.op == "Gather" and len(inputs) > 1 and inputs[1] is not None:
            axis = node.integer("axis", 0) % max(1, len(first))
            self._note(output, (*first[:axis], *inputs[1], *first[axis + 1 :]))
        elif node.op == "Transpose" and sorted(node.integers("perm")) == [*range(len(first))]:
            self._note(output, tuple(first[k] for k in node.integers("perm")))
        elif (
            "MatMul" in node.op and len(inputs) > 1 and inputs[1] is not None and len(inputs[1]) > 1
        ):
            self._note(output, (*first[:-1], inputs[1][-1]))
        elif node.op in _ELEMENTWISE and all(i is not None for i in inputs):
            rank = max(len(i) for i in inputs if i is not None)
            padded = [(1,) * (rank - len(i)) + i for i in inputs if i is not None]
            self._note(output, tuple(max(d) for d in zip(*padded, strict=True)))

    def _note(self, output: str, shape: tuple[int, ...]) -> None:
        """A shape found, if its elements can be counted."""
        elements = math.prod(max(1, d) for d in shape)
        if len(shape) <= limits.DIMENSIONS and elements <= limits.VALUE_ELEMENTS:
            self._shapes[output] = shape


_ELEMENTWISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Relu", "Sigmoid", "Sqrt", "Exp", "Log", "Neg", "Tanh",
     "Softplus", "Softmax", "Identity", "Cast", "Clip", "Abs", "LayerNormalization")
)  # fmt: skip


# --- Votes of a routing node ---


@dataclass(frozen=True)
class VoteSizes:
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


def vote_sizes_of(
    operator: Operator,
    children: Sequence[Any],
    weight: Sequence[Any],
    attributes: Mapping[str, Any],
) -> VoteSizes:
    """The votes of a node.

    Args:
        operator: a routing operator.
        children: shape of its first input, with any batch.
        weight: shape of its weight; not looked at where the votes are given.
        attributes: attributes of the node; missing ones have their defaults.
    """
    if operator.layout is DENSE:
        _, parents, pose, depth = _sizes(weight)
        (types,) = _sizes(children[1:2])  # one weight may serve all children
        return VoteSizes(1, types, parents, pose, depth)
    if operator.layout is VOTES_AS_INPUT:
        types, parents, pose = _sizes(children[1:])
        return VoteSizes(1, types, parents, pose, 0)
    rows, columns, types, parents, depth, last = _sizes(weight)
    height, width, _, size = _sizes(children[1:])
    if not operator.integer(attributes, "matrix_pose"):
        size = last
    if "shared" in operator.attribute_names and operator.integer(attributes, "shared"):
        return VoteSizes(1, height * width * types, parents, size, depth)
    down, right = _sizes(operator.complete(attributes)["strides"])
    if rows > height or columns > width or down < 1 or right < 1:
        raise ValueError("the window does not fit the grid")
    positions = ((height - rows) // down + 1) * ((width - columns) // right + 1)
    return VoteSizes(positions, rows * columns * types, parents, size, depth)


def _sizes(shape: Sequence[Any]) -> list[int]:
    if not isinstance(shape, (list, tuple)) or not all(isinstance(d, int) for d in shape):
        raise ValueError("a size is not known")
    return list(shape)
