"""Operations and bytes of an operator, from the shapes of what it reads and writes.

A multiply-add is two operations. Each input and output is counted once in bytes; an operator that only
renames a tensor (a reshape) moves none. Routing is counted by its procedure (docs/reference/operators.md):
every vote once, plus the operations on it in each iteration; a kernel that recomputes votes in every
iteration does more, and is not credited for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from capsedge.runtime.reading.onnx_structure import BITS, Node
from capsedge.schema.operators import OPERATORS, ROUTING_OPERATORS
from capsedge.schema.votes import votes_of

Shape = tuple[int, ...]

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
class Tensor:
    """Shape and element type of a value; ``shape`` is None if not stated."""

    type: str
    shape: Shape | None

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


def cost(node: Node, values: Mapping[str, Tensor]) -> Cost:
    """The operations of a node and the bytes that it moves."""
    names = [*dict.fromkeys(n for n in (*node.inputs, *node.outputs) if n)]
    known = all(n in values and values[n].shape is not None for n in names)
    moved = 0 if node.op in VIEWS else sum(values[n].bytes for n in names if n in values)
    try:
        operations = _operations(node, values)
    except (LookupError, ArithmeticError, ValueError):  # shapes that this operator cannot have
        return Cost(0.0, moved, False)
    return Cost(operations, moved, known)


def _operations(node: Node, values: Mapping[str, Tensor]) -> float:
    def shape(name: str) -> Shape:
        found = values[name].shape
        if found is None:
            raise KeyError(name)
        return found

    kind = node.operator
    if kind in VIEWS or kind in _MOVES:
        return 0.0
    if kind in ROUTING_OPERATORS:
        spec = ROUTING_OPERATORS[kind]
        children = shape(node.inputs[0])
        votes = votes_of(spec, children, shape(node.inputs[spec.weight]), node.attributes)
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
