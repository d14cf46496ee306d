"""Write Einsum of one or two tensors as matrix products, exactly.

ONNX Runtime's Einsum arranges its inputs on every call; here, weights are stored as they are needed, and a
tensor that several nodes need in one order is transposed once. The C target and INT8 read matrix products,
but no Einsum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from capsedge.graph.bodies import Shape
from capsedge.graph.fusion.repeated_values import Rewriting, elements
from capsedge.graph.ir import attributes_of, initializer


class Einsums(Rewriting):
    """Replaces every Einsum whose sizes are known, but for one that is free."""

    def __init__(self, model: onnx.ModelProto, shapes: dict[str, Shape]) -> None:
        super().__init__(model, shapes)
        self._arranged: dict[tuple[str, str, str], str] = {}

    def run(self) -> int:
        """Returns the number of replaced nodes."""
        replaced = 0
        for node in self.graph.nodes:
            terms = self._terms(node)
            if terms is None:
                self.written.append(node)
            else:
                self._write(node, terms)
                replaced += 1
        if replaced:
            self.end()
        return replaced

    def _terms(self, node: onnx.NodeProto) -> list[str] | None:
        """The letters of each input and of the output; None if the node stays."""
        if node.op_type != "Einsum" or node.domain or len(node.input) > 2:
            return None
        equation = attributes_of(node)["equation"].decode().replace(" ", "")
        left, arrow, result = equation.partition("->")
        terms = left.split(",")
        if not arrow:  # implicit: what occurs once, in the order of the alphabet
            counts = Counter(left.replace(",", ""))
            result = "".join(sorted(k for k, n in counts.items() if n == 1))
        if len(terms) != len(node.input) or any(
            "." in term or len(set(term)) < len(term) for term in (*terms, result)
        ):
            return None
        sizes: dict[str, int | None] = {}
        for name, term in zip(node.input, terms, strict=True):
            shape = self.shapes.get(name)
            if shape is None or len(shape) != len(term) or 0 in shape:
                return None
            if any(sizes.setdefault(k, d) != d for k, d in zip(term, shape, strict=True)):
                return None
            if name in self.graph.initializers and len(self.graph.users(name)) > 1:
                return None
        several = sum(d is None for d in sizes.values()) > 1
        return None if several or not set(result) <= sizes.keys() else [*terms, result]

    def _write(self, node: onnx.NodeProto, terms: list[str]) -> None:
        *read, result = terms
        sizes = {
            k: d
            for name, term in zip(node.input, read, strict=True)
            for k, d in zip(term, self.shapes[name], strict=True)
        }
        first, second = read[0], read[-1] if len(read) > 1 else ""
        shared = [k for k in result if k in first and k in second]
        summed = [k for k in first if k in second and k not in result]
        rows = [k for k in result if k in first and k not in second]
        columns = [k for k in result if k in second and k not in first]

        def of(letters: Sequence[str]) -> Shape:
            return tuple(sizes[k] for k in letters)

        def joined(letters: Sequence[str]) -> int | None:
            found = of(letters)
            return None if None in found else elements(found)

        base, batch = node.output[0], of(shared)
        if len(read) == 1:
            x = self._arrange(node.input[0], first, rows, of(rows), base)
        else:
            shape = (*batch, joined(rows), joined(summed))
            a = self._arrange(node.input[0], first, [*shared, *rows, *summed], shape, base)
            shape = (*batch, joined(summed), joined(columns))
            b = self._arrange(node.input[1], second, [*shared, *summed, *columns], shape, base)
            shape = (*batch, joined(rows), joined(columns))
            x = self.node("MatMul", [a, b], self.name(f"{base}_product"), shape)
        order = [*shared, *rows, *columns]
        if order != list(result):
            x = self.in_shape(x, of(order), f"{base}_flat")
            perm = [order.index(k) for k in result]
            x = self.node("Transpose", [x], self.name(f"{base}_ordered"), of(result), perm=perm)
        self.view(x, of(result), base)

    def _arrange(self, x: str, term: str, letters: Sequence[str], shape: Shape, base: str) -> str:
        """A tensor with its axes in this order and this shape; axes that are not named are added up."""
        key = (x, term, f"{''.join(letters)} {shape}")
        if key not in self._arranged:
            self._arranged[key] = self._arrange_new(x, term, letters, shape, base)
        return self._arranged[key]

    def _arrange_new(
        self, x: str, term: str, letters: Sequence[str], shape: Shape, base: str
    ) -> str:
        lost = [k for k, letter in enumerate(term) if letter not in letters]
        left = [letter for letter in term if letter in letters]
        perm = [left.index(letter) for letter in letters]
        if x in self.graph.initializers:
            array = self.graph.array(x).sum(axis=tuple(lost)).transpose(perm)
            name = self.name(f"{x}_arranged")
            array = np.ascontiguousarray(array.reshape([-1 if d is None else d for d in shape]))
            self.model.graph.initializer.append(initializer(name, array))
            self.shapes[name] = array.shape
            return name
        kept = tuple(d for k, d in enumerate(self.shapes[x]) if k not in lost)
        if lost:
            axes = self.integers(lost)
            x = self.node("ReduceSum", [x, axes], self.name(f"{base}_sum"), kept, keepdims=0)
        if perm != sorted(perm):
            moved = tuple(kept[k] for k in perm)
            x = self.node("Transpose", [x], self.name(f"{base}_moved"), moved, perm=perm)
        return self.in_shape(x, shape, f"{base}_flat")
