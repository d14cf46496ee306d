"""Sizes of all values of a graph for one batch size, from the shapes that the file states.

Files state most shapes, with names for what is free: ``N`` is the batch, ``36*N`` a multiple of it, others
stand for products with it in inlined bodies. A name means one number everywhere, so each is solved for from
the operators that keep the number of elements, broadcast, or multiply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from capsedge.runtime.files import limits
from capsedge.runtime.reading.costs import Tensor
from capsedge.runtime.reading.onnx_structure import Graph, Node, Shape, Value

_SAME_COUNT = frozenset(
    ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "CastLike",
     "Softmax", "LogSoftmax", "LayerNormalization")
)  # fmt: skip
_MULTIPLE = re.compile(r"([1-9][0-9]{0,9})\*([A-Za-z_]\w*)")
_ROUNDS = 3


class Sizes:
    """Shapes with numbers in place of names."""

    def __init__(self, graph: Graph, batch: int) -> None:
        stored = {value.name for value in graph.initializers}
        everything = (*graph.values, *graph.inputs, *graph.outputs, *graph.initializers)
        self._stated: dict[str, Value] = {value.name: value for value in everything}
        self._numbers: dict[str, int] = {
            value.shape[0]: batch
            for value in graph.inputs
            if value.name not in stored and value.shape and isinstance(value.shape[0], str)
        }
        self._found: dict[str, tuple[int, ...]] = {}
        for _ in range(_ROUNDS):
            for node in graph.nodes:
                self._visit(node)

    def tensors(self) -> dict[str, Tensor]:
        """Type and shape of every value of known size."""
        found = {}
        for name in {*self._stated, *self._found}:
            shape = self.shape(name)
            if shape is not None:
                stated = self._stated.get(name)
                found[name] = Tensor(stated.type if stated else "float32", shape)
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Sizes of a value; None while a name in it is unsolved."""
        if name in self._found:
            return self._found[name]
        stated = self._stated.get(name)
        if stated is None or stated.shape is None:
            return None
        numbers = [self._number(d) if isinstance(d, str) else d for d in stated.shape]
        return tuple(numbers) if all(isinstance(d, int) for d in numbers) else None  # type: ignore[arg-type]

    def _number(self, name: str) -> int | None:
        """What a name stands for, or a multiple of one: ``N``, ``36*N``."""
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
            stated = self._stated.get(output)
            if stated is None or stated.shape is None:
                self._derive(node, output, inputs)
            else:
                self._solve(node, stated.shape, inputs)

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
            found = [i[-back] for i in known if len(i) >= back]
            if found:
                self._numbers.setdefault(dimension, max(found))

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
            self._found[output] = shape


_ELEMENTWISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Relu", "Sigmoid", "Sqrt", "Exp", "Log", "Neg", "Tanh",
     "Softplus", "Softmax", "Identity", "Cast", "Clip", "Abs", "LayerNormalization")
)  # fmt: skip
