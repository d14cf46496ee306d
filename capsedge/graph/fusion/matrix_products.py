"""Write sums of products as matrix products, exactly, in routing that no operator covers.

- A sum of products, ``sum(couplings * votes)`` over an axis, is a matrix product. ONNX Runtime takes 1.4 to 9
  times as long for the product, its sum and the memory between them. Where the two axes are not the last ones
  and several sums need the same order, the larger factor is transposed once.
- Votes are one matrix product for each child, not one for each pair of a child and a parent: ONNX Runtime
  takes 2 to 11 times as long for those. The weights are stored in that order.

Sums are added up in another order; everything else keeps its bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from capsedge.graph.bodies import Shape
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.fusion.einsums import Einsums
from capsedge.graph.fusion.repeated_values import RepeatedValues, Rewriting, elements
from capsedge.graph.ir import initializer, shapes_of
from capsedge.spec.operators import DOMAIN

_LEAST = 256  # multiplications of a matrix product: below, calls cost more than they save
_LEAST_MOVED = 4096  # elements of a factor for an image, from which it is transposed
_SMALL_MATRIX = 4096  # multiplications of a product: larger ones gain nothing from being joined


def write_matrix_products(model: onnx.ModelProto) -> int:
    """Rewrite a model in place; returns the number of nodes that were replaced."""
    shapes = shapes_of(onnx.shape_inference.infer_shapes(model, data_prop=True))
    changed = 0
    for rewriting in (Einsums, RepeatedValues, _Sums, _Votes):
        changed += rewriting(model, shapes).run()
        if changed:
            remove_dead_nodes(model, DOMAIN)  # they would count as users of the weights
    return changed


# --- Sums of products ---


@dataclass(frozen=True)
class _Sum:
    """A sum of products over an axis.

    Attributes:
        product, node: the multiplication and the node that adds up.
        small, large: its factors; ``small`` has one element along ``free``.
        a, b: their shapes, of one rank: neighbouring axes of the same use are one.
        axis: what is summed over.
        free: the axis of the large factor that becomes the other axis of the matrix.
        shape: of the product.
    """

    product: onnx.NodeProto
    node: onnx.NodeProto
    small: str
    large: str
    a: Shape
    b: Shape
    axis: int
    free: int
    shape: Shape

    @property
    def matrices(self) -> tuple[str, Shape, tuple[int, ...]]:
        """What names the matrices of the large factor."""
        return self.large, self.b, self.order

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the large factor with those of the matrix last."""
        last = sorted((self.axis, self.free))
        return (*(k for k in range(len(self.shape)) if k not in last), *last)

    @property
    def moves(self) -> bool:
        """Whether that order differs from the factor's own."""
        return list(self.order) != list(range(len(self.shape)))


class _Sums(Rewriting):
    """Turns sums of products into matrix products."""

    def run(self) -> int:
        """Returns the number of sums."""
        sums = [s for node in self.graph.nodes if (s := self._sum(node)) is not None]
        uses = Counter(s.matrices for s in sums)
        kept = {
            id(s.node): s
            for s in sums
            if not s.moves or (uses[s.matrices] > 1 and elements(s.shape) >= _LEAST_MOVED)
        }
        if not kept:
            return 0
        moved: dict[tuple[str, Shape, tuple[int, ...]], str] = {}
        for node in self.graph.nodes:
            found = kept.get(id(node))
            if found is None:
                self.written.append(node)
            else:
                self._write(found, moved)
        self.end()
        return len(kept)

    def _sum(self, node: onnx.NodeProto) -> _Sum | None:
        axes = self._summed(node)
        product = self.graph.producer(node.input[0]) if axes else None
        if product is None or product.op_type != "Mul" or product.domain:
            return None
        name = product.output[0]
        if len(self.graph.users(name)) != 1 or name in self.graph.outputs:
            return None
        whole = self.shapes.get(name)
        factors = [self.shapes.get(i) for i in product.input]
        if whole is None or None in factors or whole.count(None) > 1:
            return None
        full = [(1,) * (len(whole) - len(s)) + tuple(s) for s in factors if s is not None]
        groups = _groups(full[0], full[1], axes)
        if sum(group[0] in axes for group in groups) != 1:
            return None
        axis = next(k for k, group in enumerate(groups) if group[0] in axes)
        merged = [_merged(s, groups) for s in (*full, whole)]
        pair = list(zip(product.input, merged, strict=False))
        found = []
        for (small, a), (large, b) in (pair, pair[::-1]):
            free = self._free(a, b, axis, 1 if large in self.graph.initializers else _LEAST)
            if free is not None:
                found.append(_Sum(product, node, small, large, a, b, axis, free, merged[2]))
        return max(found, key=lambda each: each.shape[each.free] or 0, default=None)

    def _summed(self, node: onnx.NodeProto) -> list[int]:
        """The axes that a node sums over; empty if it does something else."""
        if node.domain or len(node.output) != 1 or not node.input:
            return []
        if node.op_type == "ReduceSum":
            return self.axes(node) or []
        shape = self.shapes.get(node.input[0])
        if node.op_type != "MatMul" or shape is None:
            return []
        ones = self.arrays.get(node.input[1])
        sums = (
            ones is not None and ones.ndim == 2 and ones.shape[1] == 1 and bool((ones == 1).all())
        )
        return [len(shape) - 1] if sums else []

    def _free(self, a: Shape, b: Shape, axis: int, least: int) -> int | None:
        """The axis of the large factor ``b`` that becomes the other axis of the matrix."""
        count = b[axis]
        if count is None or count == 1 or a[axis] != count:
            return None
        sizes = {
            k: size
            for k, (one, size) in enumerate(zip(a, b, strict=True))
            if one == 1 and size is not None and size * count >= least and k != axis
        }
        last = sorted(sizes, key=lambda k: ({k, axis} == {len(b) - 1, len(b) - 2}, sizes[k]))
        return last[-1] if last else None

    def _write(self, one: _Sum, moved: dict[tuple[str, Shape, tuple[int, ...]], str]) -> None:
        y, base, order, a = one.node.output[0], one.product.output[0], one.order, one.a
        rank = len(one.shape)
        small = self.in_shape(one.small, a, f"{base}_ranked")
        if not one.moves:
            # A MatMul adds axes of one element in front by itself.
            large, own = one.large, self.shapes[one.large]
            if len(own) < 2 or (1,) * (rank - len(own)) + tuple(own) != one.b:
                large = self.view(large, one.b, self.name(f"{base}_flat"))
        else:
            a = tuple(a[k] for k in order)
            small = self.node("Transpose", [small], self.name(f"{base}_small"), a, perm=order)
            if one.matrices not in moved:
                large = self.in_shape(one.large, one.b, f"{base}_flat")
                b = tuple(one.b[k] for k in order)
                at = self.name(f"{one.large}_moved")
                moved[one.matrices] = self.node("Transpose", [large], at, b, perm=order)
            large = moved[one.matrices]
        # The matrix, or its other factor, gets the axis of one element in the other place.
        small = self.view(small, (*a[:-2], a[-1], a[-2]), self.name(f"{base}_matrix"))
        pair = [large, small] if order[-1] == one.axis else [small, large]
        sizes = tuple(1 if k == one.axis else d for k, d in enumerate(one.shape))
        shape = self.shapes[y]
        last = y if shape == sizes and not one.moves else self.name(f"{base}_summed")
        result = self.node("MatMul", pair, last, tuple(sizes[k] for k in order))
        if one.moves:
            back = tuple(int(k) for k in np.argsort(order))
            last = y if shape == sizes else self.name(f"{base}_back")
            result = self.node("Transpose", [result], last, sizes, perm=back)
        if result != y:
            self.view(result, shape, y)


def _groups(a: Shape, b: Shape, summed: Sequence[int]) -> list[list[int]]:
    """The axes of a product, those together that are summed over or along which the same factor repeats."""
    groups: list[list[int]] = []
    before: tuple[bool, bool, bool] | None = None
    for k, pair in enumerate(zip(a, b, strict=True)):
        use = (k in summed, pair[0] == 1, pair[1] == 1)
        # Sizes that are free, and those of both factors, stay axes of their own.
        if use == before and None not in pair and (use[0] or use[1] != use[2]):
            groups[-1].append(k)
        else:
            groups.append([k])
        before = use if None not in pair else None
    return groups


def _merged(shape: Shape, groups: Sequence[Sequence[int]]) -> Shape:
    """A shape with one size for each group of axes."""
    return tuple(shape[g[0]] if len(g) == 1 else elements([shape[k] for k in g]) for g in groups)


# --- Votes ---


@dataclass(frozen=True)
class _Product:
    """Matrix products of values and stored weights, with the axes of both in one rank.

    Attributes:
        values, weights: their names.
        first: whether the values are the left factor.
        a, w: shapes, with leading ones.
        shared: the axes along which both differ: the children.
        rows: those along which only the values differ, such as the images.
        columns: those along which only the weights differ: the parents.
    """

    values: str
    weights: str
    first: bool
    a: Shape
    w: Shape
    shared: list[int]
    rows: list[int]
    columns: list[int]

    @property
    def stored(self) -> tuple[object, ...]:
        """What decides the order of the weights."""
        return self.first, self.w, tuple(self.shared), tuple(self.columns)

    @property
    def inner(self) -> tuple[int, int]:
        """The axes of a matrix of values, what is kept and what is summed over; of weights, the reverse."""
        rank = len(self.a)
        return (rank - 2, rank - 1) if self.first else (rank - 1, rank - 2)


class _Votes(Rewriting):
    """Joins the products of a child for all parents."""

    def run(self) -> int:
        """Returns the number of products."""
        found = {
            id(node): one for node in self.graph.nodes if (one := self._product(node)) is not None
        }
        # A layer that is called twice: its weights are stored in one order only.
        orders: dict[str, set[tuple[object, ...]]] = {}
        for one in found.values():
            orders.setdefault(one.weights, set()).add(one.stored)
        found = {
            key: one
            for key, one in found.items()
            if len(orders[one.weights]) == 1
            and all(id(user) in found for user in self.graph.users(one.weights))
        }
        grouped: dict[str, str] = {}
        for node in self.graph.nodes:
            if id(node) in found:
                self._write(node, found[id(node)], grouped)
            else:
                self.written.append(node)
        if found:
            self.end()
        return len(found)

    def _product(self, node: onnx.NodeProto) -> _Product | None:
        if node.op_type != "MatMul" or node.domain or None in map(self.shapes.get, node.input):
            return None
        stored = [name in self.graph.initializers for name in node.input]
        if sum(stored) != 1:
            return None
        values, weights = node.input[stored.index(False)], node.input[stored.index(True)]
        rank = max(len(self.shapes[name]) for name in node.input)
        a, w = (
            (1,) * (rank - len(s)) + tuple(s) for s in (self.shapes[values], self.shapes[weights])
        )
        if rank < 3 or a.count(None) > 1 or None in a[-2:] or 0 in w:
            return None
        axes = range(rank - 2)
        one = _Product(
            values, weights, not stored[0], a, w,
            [k for k in axes if a[k] != 1 and w[k] != 1],
            [k for k in axes if a[k] != 1 and w[k] == 1],
            [k for k in axes if a[k] == 1 and w[k] != 1],
        )  # fmt: skip
        if any(a[k] != w[k] for k in one.shared) or not one.columns:
            return None
        matrix = elements((*w[-2:], a[one.inner[0]]))
        return one if matrix <= _SMALL_MATRIX else None

    def _write(self, node: onnx.NodeProto, one: _Product, grouped: dict[str, str]) -> None:
        y, base, (kept, summed) = node.output[0], node.output[0], one.inner
        sizes = dict(enumerate(one.a))

        # [children, images and rows, summed]
        order = [*one.shared, *one.rows, kept, summed]
        plain = sorted(order)
        x = self.view(one.values, tuple(sizes[k] for k in plain), self.name(f"{base}_plain"))
        if order != plain:
            moved = tuple(sizes[k] for k in order)
            perm = [plain.index(k) for k in order]
            x = self.node("Transpose", [x], self.name(f"{base}_children"), moved, perm=perm)
        rows = [sizes[k] for k in (*one.rows, kept)]
        count = None if None in rows else elements(rows)
        shared = [sizes[k] for k in one.shared]
        x = self.view(x, (*shared, count, sizes[summed]), self.name(f"{base}_rows"))

        across = summed  # of the weights, this axis is kept
        parents = [int(one.w[k] or 1) for k in (*one.columns, across)]
        if one.weights not in grouped:
            grouped[one.weights] = self._grouped(one)
        weights = grouped[one.weights]
        shape = (*shared, count, math.prod(parents))
        x = self.node("MatMul", [x, weights], self.name(f"{base}_grouped"), shape)
        axes = [*one.shared, *one.rows, kept, *one.columns, across + len(one.a)]
        ends = (*shared, *rows, *parents)
        x = self.view(x, ends, self.name(f"{base}_parts"))
        # In the order of the result, whose last two axes are those of its matrices.
        batch = sorted(k for k in axes if k < len(one.a) - 2)
        last = [kept, across + len(one.a)] if one.first else [across + len(one.a), kept]
        perm = [axes.index(k) for k in (*batch, *last)]
        back = self.name(f"{base}_ordered")
        x = self.node("Transpose", [x], back, tuple(ends[k] for k in perm), perm=perm)
        self.view(x, self.shapes[y], y)

    def _grouped(self, one: _Product) -> str:
        """The weights as matrices of a child: [children, summed, parents and columns]."""
        inside, across = one.inner
        sizes = [d or 1 for d in one.w]
        used = [*one.shared, inside, *one.columns, across]
        others = [k for k in range(len(sizes)) if k not in used]
        stored = self.graph.array(one.weights).reshape(sizes).transpose([*others, *used])
        shape = [*(sizes[k] for k in (*one.shared, inside)), -1]
        name = self.name(f"{one.weights}_grouped")
        matrices = initializer(name, np.ascontiguousarray(stored.reshape(shape)))
        self.model.graph.initializer.append(matrices)
        self.shapes[name] = tuple(matrices.dims)
        return name
