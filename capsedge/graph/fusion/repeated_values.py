"""Compute with a tensor before it is repeated, in routing that no operator covers.

Element-wise nodes, reductions, products and views read what an Expand, a Tile or a Concat repeats. Every
value keeps its bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from capsedge.graph.bodies import Shape
from capsedge.graph.cleanup import remove_unused_tensors
from capsedge.graph.ir import (
    Graph,
    attributes_of,
    constants_of,
    initializer,
    replace_repeated,
    rewire,
)

_ELEMENTWISE = frozenset((
    "Abs", "Add", "Clip", "Div", "Exp", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal",
    "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh",
))  # fmt: skip
_EXPANDING = ("ConstantOfShape", "Expand")
_REPEATING = (*_EXPANDING, "Concat", "Tile")
_VIEWS = ("Squeeze", "Transpose", "Unsqueeze")
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_LARGEST = 1 << 16  # elements of a constant that is written out
_RUN = 64  # elements that are broadcast in one go as fast as any number
_FEW = 8  # runs of an image, which take no time worth mentioning
_STORED = 4096  # elements of a constant whose values are looked at


class Rewriting:
    """Nodes of a graph that are being replaced, with the shapes of all values.

    Args:
        model: changed in place.
        shapes: of every value whose rank is known; None for the batch. Those of new values are added.
    """

    def __init__(self, model: onnx.ModelProto, shapes: dict[str, Shape]) -> None:
        self.graph = Graph.of(model.graph)
        self.model = model
        self.shapes = shapes
        self.arrays = {
            name: onnx.numpy_helper.to_array(tensor)
            for name, tensor in constants_of(model).items()
            if math.prod(tensor.dims) <= _STORED
        }
        self.shapes.update({t.name: tuple(t.dims) for t in model.graph.initializer})
        self.taken = {*self.graph.needed, *self.graph.produced, *self.graph.initializers}
        self.written: list[onnx.NodeProto] = []
        self.stored = {  # names of lists of integers
            tuple(self.arrays[name].tolist()): name
            for name in self.graph.initializers
            if name in self.arrays
            and self.arrays[name].ndim == 1
            and self.arrays[name].dtype == np.int64
        }

    def name(self, wanted: str) -> str:
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        return wanted

    def node(self, op: str, inputs: Sequence[str], output: str, shape: Shape, **more: Any) -> str:
        """Add a node with a new value, or with a value that the node replaced had."""
        self.written.append(helper.make_node(op, list(inputs), [output], **more))
        self.shapes[output] = shape
        return output

    def integers(self, values: Sequence[int]) -> str:
        """A stored list of integers."""
        wanted = tuple(values)
        if wanted not in self.stored:
            spelt = "_".join(str(v).replace("-", "m") for v in wanted)
            name = self.stored[wanted] = self.name(f"sizes_{spelt}")
            self.arrays[name] = np.array(wanted, np.int64)
            self.model.graph.initializer.append(initializer(name, self.arrays[name]))
        return self.stored[wanted]

    def view(self, x: str, shape: Shape, output: str) -> str:
        target = self.integers([-1 if d is None else d for d in shape])
        return self.node("Reshape", [x, target], output, shape)

    def in_shape(self, x: str, shape: Shape, name: str) -> str:
        """The value, or a view of it under a name like this one."""
        return x if self.shapes[x] == shape else self.view(x, shape, self.name(name))

    def axes(self, node: onnx.NodeProto) -> list[int] | None:
        """The axes of a reduction, counted from the first; None if they are not constant."""
        shape = self.shapes.get(node.input[0])
        named = attributes_of(node).get("axes")
        if named is None and len(node.input) > 1:
            named = self.arrays.get(node.input[1])
        if shape is None or named is None or not np.size(named):  # all axes, or none
            return None
        return sorted(int(a) % len(shape) for a in np.reshape(named, -1))

    def end(self) -> None:
        replace_repeated(self.model.graph.node, self.written)


def elements(shape: Sequence[int | None]) -> int:
    """The number of elements for one image."""
    return math.prod(d or 1 for d in shape)


def _run(small: Shape, full: Shape) -> int:
    """The elements of a result that are computed in one go: those at the end that use a factor alike."""
    small = (1,) * (len(full) - len(small)) + tuple(small)
    length, same = 1, None
    for a, b in zip(small[::-1], full[::-1], strict=True):
        if b == 1:
            continue
        if same is not None and same != (a == b):
            break
        same = a == b
        length *= b or 1
    return length


def joined(shapes: Sequence[Shape]) -> Shape | None:
    """The shape of an element-wise result; None if it is not certain."""
    rank = max(map(len, shapes))
    sizes = []
    for column in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        others = {size for size in column if size != 1}
        if len(others) > 1:
            return None
        sizes.append(others.pop() if others else 1)
    return tuple(sizes)


class RepeatedValues(Rewriting):
    """Computes with tensors before they are repeated."""

    def __init__(self, model: onnx.ModelProto, shapes: dict[str, Shape]) -> None:
        super().__init__(model, shapes)
        self.small: dict[str, str] = {}  # a repeated value -> the one that it repeats
        self.target: dict[str, str] = {}  # a repeated value -> a shape to expand to
        self.changed = 0

    def run(self) -> int:
        """Returns the number of changed nodes."""
        if not any(node.op_type in _REPEATING and not node.domain for node in self.graph.nodes):
            return 0
        for node in self.graph.nodes:
            self._node(node)
        if self.changed:
            self.end()
        else:
            remove_unused_tensors(self.model)
        return self.changed

    def _node(self, node: onnx.NodeProto) -> None:
        y = node.output[0] if len(node.output) == 1 else ""
        full = self.shapes.get(y)
        if node.op_type in _EXPANDING and not node.domain and full is not None:
            fill = node.op_type == "ConstantOfShape"
            x = self._fill(node, y, full) if fill else node.input[0]
            source = self._before_expand(x, y, full) if x else ""
            if source:
                self.small[y], self.target[y] = source, node.input[-1]
        elif self._only_repeats(node, y):
            self.small[y] = self.small.get(node.input[0], node.input[0])
        elif not node.domain and full is not None and any(i in self.small for i in node.input):
            shape = self._narrow(node, full)
            if shape == full:
                read = {i: self.small[i] for i in node.input if self._pays(node, i, full)}
                rewire(node, read)
                self.changed += len(read)
            elif shape is not None:
                self._repeat(node, shape, full)
                return
        self.written.append(node)

    def _only_repeats(self, node: onnx.NodeProto, y: str) -> bool:
        """Whether a Tile or a Concat repeats its input along axes of one element."""
        before, after = self.shapes.get(node.input[0] if node.input else ""), self.shapes.get(y)
        if node.domain or before is None or after is None or len(before) != len(after):
            return False
        if node.op_type == "Concat" and len(set(node.input)) > 1:
            return False
        grown = [b for a, b in zip(before, after, strict=True) if a != b]
        ones = [a for a, b in zip(before, after, strict=True) if a != b]
        return node.op_type in ("Concat", "Tile") and {*ones} == {1} and None not in grown

    def _fill(self, node: onnx.NodeProto, y: str, full: Shape) -> str:
        """A stored number that a ConstantOfShape repeats; empty if its size is constant."""
        if full.count(None) != 1:
            return ""
        value = attributes_of(node).get("value")
        number = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
        return self._constant(number.reshape((1,) * len(full)), self.name(f"{y}_fill"))

    def _constant(self, array: np.ndarray[Any, Any], name: str) -> str:
        self.arrays[name] = array
        self.model.graph.initializer.append(initializer(name, array))
        self.shapes[name] = array.shape
        return name

    def _before_expand(self, x: str, y: str, full: Shape) -> str:
        """What an Expand repeats, with the rank of its result; empty if there is nothing to gain."""
        source = self.small.get(x, x)
        shape = self.shapes.get(source)
        if shape is None or shape.count(None) > 1:
            return ""
        sizes = tuple(d or 1 for d in full)
        if source in self.arrays and None in full and math.prod(sizes) <= _LARGEST:
            # Of a constant, only the batch is left to repeat, so that more can be computed beforehand.
            return self._constant(
                np.broadcast_to(self.arrays[source], sizes), self.name(f"{y}_once")
            )
        if len(shape) < len(full):
            shape = (1,) * (len(full) - len(shape)) + tuple(shape)
            source = self.view(source, shape, self.name(f"{y}_once"))
        return source if shape != full else ""

    def _repeat(self, node: onnx.NodeProto, shape: Shape, full: Shape) -> None:
        """Compute a value once; whoever needs it repeated gets that as before, or by an Expand."""
        y = node.output[0]
        once = onnx.NodeProto()
        once.CopyFrom(node)
        rewire(once, self.small)
        if node.op_type == "Reshape":
            once.input[1] = self.integers([-1 if d is None else d for d in shape])
        once.output[0] = self.name(f"{y}_once")
        self.written.append(once)
        self.shapes[once.output[0]] = shape
        self.small[y] = once.output[0]
        self.changed += 1
        target = self._target(node, shape, full)
        if target:
            self.target[y] = target
            self.node("Expand", [once.output[0], target], y, full)
        else:
            self.written.append(node)

    def _pays(self, node: onnx.NodeProto, x: str, full: Shape) -> bool:
        """Whether reading what a value repeats is faster, for a result that is not smaller for it.

        ONNX Runtime takes longer to broadcast short runs than to repeat a value and read it twice.
        """
        if x not in self.small:
            return False
        if node.op_type not in _ELEMENTWISE or self._is_summed(node, len(full)):
            return True
        once = self.shapes[self.small[x]]
        run = _run(once, full)
        if run >= min(_RUN, _run(self.shapes[x], full)) or elements(full) // run <= _FEW:
            return True
        return once[-1:] == (1,) and len(self.graph.users(x)) <= 2

    def _is_summed(self, node: onnx.NodeProto, rank: int) -> bool:
        """Whether a product is added up over one of its last two axes, as a matrix product is."""
        users = self.graph.users(node.output[0])
        if node.op_type != "Mul" or len(users) != 1:
            return False
        if users[0].op_type == "MatMul":
            return True
        summed = self.axes(users[0]) if users[0].op_type == "ReduceSum" else None
        return summed is not None and min(summed) >= rank - 2

    def _target(self, node: onnx.NodeProto, shape: Shape, full: Shape) -> str:
        """The shape that an Expand needs; empty if the batch is repeated and its size is nowhere."""
        sizes = [1 if a == b else b for a, b in zip(shape, full, strict=True)]
        if None not in sizes:
            return self.integers([d or 1 for d in sizes])
        known = (self.target[i] for i in node.input if i in self.target and self.shapes[i] == full)
        return next(known, "")

    def _narrow(self, node: onnx.NodeProto, full: Shape) -> Shape | None:
        """The shape of a node's result if it reads what is repeated; None if it may not."""
        shapes = [self.shapes.get(self.small.get(i, i)) if i else () for i in node.input]
        known = [s for s in shapes if s is not None]
        if len(known) < len(shapes):
            return None
        if node.op_type in _ELEMENTWISE:
            found = joined(known)
            return found if found is not None and len(found) == len(full) else None
        if node.op_type == "MatMul" and min(map(len, known)) > 2:
            return self._narrow_product(node, known, full)
        if node.input[0] not in self.small or any(i in self.small for i in node.input[1:]):
            return None
        whole, small = self.shapes[node.input[0]], known[0]
        if node.op_type in _VIEWS or node.op_type == "Reshape":
            return self._narrow_view(node, whole, small, full)
        kept = self._reduced(node, len(small))
        if kept is None or any(whole[k] != small[k] for k in kept):
            return None
        if node.op_type == "Softmax":
            return small
        if node.op_type == "MatMul":
            return (*small[:-1], full[-1])
        ends = 1 if attributes_of(node).get("keepdims", 1) else 0
        return tuple(1 if k in kept else d for k, d in enumerate(small) if ends or k not in kept)

    def _reduced(self, node: onnx.NodeProto, rank: int) -> list[int] | None:
        """The axes over which a node computes each result."""
        if node.op_type == "Softmax":
            return [int(attributes_of(node).get("axis", -1)) % rank]
        if node.op_type in _REDUCTIONS:
            return self.axes(node)
        if node.op_type == "MatMul" and len(self.shapes[node.input[1]]) == 2:
            return [rank - 1]
        return None

    def _narrow_product(
        self, node: onnx.NodeProto, known: Sequence[Shape], full: Shape
    ) -> Shape | None:
        """As for element-wise nodes, if only axes before those of the matrices are repeated."""
        whole = [self.shapes[i] for i in node.input]
        if any(a[-2:] != b[-2:] for a, b in zip(known, whole, strict=True)):
            return None
        found = joined([s[:-2] for s in known])
        return (*found, *full[-2:]) if found is not None and len(found) == len(full) - 2 else None

    def _narrow_view(
        self, node: onnx.NodeProto, whole: Shape, small: Shape, full: Shape
    ) -> Shape | None:
        if node.op_type == "Transpose":
            order = attributes_of(node).get("perm", range(len(small))[::-1])
            return tuple(small[k] for k in order)
        if node.op_type == "Squeeze" and len(node.input) < 2:
            return None  # without axes, it would remove the batch of one element as well
        left = [(w, s) for w, s in zip(whole, small, strict=True) if w != 1]
        if [w for w, _ in left] == [d for d in full if d != 1]:  # only axes of one element differ
            sizes = iter(s for _, s in left)
            return tuple(1 if d == 1 else next(sizes) for d in full)
        # Only the batch is repeated, and it stays the first axis: as many values belong to each image.
        if whole[1:] != small[1:] or small[0] != 1 or not full or full[0] != whole[0]:
            return None
        once = (1, *full[1:])
        if None in once or None in small or elements(once) != elements(small):
            return None
        return once
