"""Write the body of an ONNX function: nodes over named tensors, each name used once.

Votes have the layout that routes fastest, ``[N·S, M, I, P]``: ``S`` output positions, ``M`` parents, ``I``
children of a window, ``P = R·L`` elements of a pose of ``R`` rows. With the children next to the pose, a
parent's weighted sum and its agreement are one matrix product each, which reads the votes once and writes
nothing of their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph import Rewrites
from capsedge.spec import operators

Shape = tuple[int | None, ...]


class Body:
    """Collects the nodes of one function body.

    All arithmetic is in ``compute`` (FP32): inputs are cast to it and results back to the type of the first
    input, so one body serves float and float16 nodes. The casts of a float node are removed by every consumer
    (ONNX Runtime, OpenVINO, TensorRT), and by the exporter itself where it inlines.

    Args:
        operator: the operator's name; prefix of every tensor name, because TensorRT before 10.8 confuses a
            formal input with a tensor of the same name outside.
        shapes: shapes of the inputs that the node has, by name; None for the free batch.
        attributes: all attributes of the operator.
        rewrites: which exact rewrites to use.
        couplings: whether to add the couplings as an output.
        traced: whether to add the values of all iterations as outputs (``keep``).
        compute: element type of the arithmetic.
    """

    def __init__(
        self,
        operator: str,
        shapes: dict[str, Shape],
        attributes: dict[str, Any],
        rewrites: Rewrites,
        couplings: bool = False,
        compute: int = TensorProto.FLOAT,
        traced: bool = False,
    ) -> None:
        self.operator = operator
        self.shapes = shapes
        self.attributes = attributes
        self.rewrites = rewrites
        self.couplings = couplings
        self.compute = compute
        self.traced = traced
        self._kept: dict[str, list[str]] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._like = self.formal(next(iter(shapes)))
        self._batch = next(iter(shapes.values()))[0]
        self._computed: dict[str, str] = {}
        self._constants: dict[bytes, str] = {}

    def formal(self, name: str) -> str:
        """The formal name of an input or output."""
        return f"{self.operator}_{name}"

    def input(self, name: str) -> str:
        """An input, in the type of the arithmetic."""
        if name in self._computed:
            return self._computed[name]
        return self.op("Cast", self.formal(name), to=self.compute)

    def compute_input(self, name: str, value: str) -> None:
        """Let ``input(name)`` be a value that the body computes, in the type of the arithmetic."""
        self._computed[name] = value

    def result(self, name: str, value: str) -> None:
        """Set an output's value, in the type of the first input."""
        self.nodes.append(helper.make_node("CastLike", [value, self._like], [self.formal(name)]))

    def keep(self, kind: str, value: str, *shape: int) -> None:
        """Keep an iteration's value for a traced body; ``shape`` is that for one window."""
        if self.traced:
            one = self.op("Reshape", value, self.ints([0, 1, *shape]))
            self._kept.setdefault(kind, []).append(one)

    def kept_results(self) -> None:
        """Give a traced body its outputs ``trace_kind``: ``[N·S, T, ...]``, parents before children."""
        for kind, values in self._kept.items():
            whole = values[0] if len(values) == 1 else self.op("Concat", *values, axis=1)
            self.result(f"trace_{kind}", whole)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        output = f"{self.operator}_{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def keep_iteration_value(self, value: str, kind: str, iteration: int = 1) -> str:
        """Name a new value after its iteration (``spec.operators``), so that it can be found in the body.

        Couplings are ``[N·S or 1, M, I]``, poses ``[N·S, M, 1, P]``, logits of activations ``[N·S, M]``.
        """
        marked = self.formal(operators.iteration_value_name(iteration, kind))
        for node in self.nodes:
            for names in (node.input, node.output):
                for k, old in enumerate(names):
                    if old == value:
                        names[k] = marked
        return marked

    def constant(self, value: Any) -> str:
        """A constant in the type of the arithmetic."""
        return self._constant(np.asarray(value, helper.tensor_dtype_to_np_dtype(self.compute)))

    def ints(self, values: Sequence[int]) -> str:
        """A constant INT64 vector: axes, a shape."""
        return self._constant(np.asarray(list(values), np.int64))

    def _constant(self, value: np.ndarray) -> str:
        tensor = numpy_helper.from_array(value)
        key = tensor.SerializeToString()
        if key not in self._constants:
            self._constants[key] = self.op("Constant", value=tensor)
        return self._constants[key]

    def batched(self, factor: int = 1) -> int:
        """The batch times a factor as a dimension of a shape: a number if the batch is fixed, else -1."""
        return -1 if self._batch is None else self._batch * factor

    @staticmethod
    def merged(dims: Shape) -> int:
        """Some dimensions merged into one: a number if all are known, otherwise -1."""
        return -1 if None in dims else math.prod(d for d in dims if d is not None)

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; one dimension may be -1 (``batched``)."""
        return self.op("Reshape", x, self.ints(shape))

    def transpose(self, x: str, *perm: int) -> str:
        """Permute the axes."""
        return self.op("Transpose", x, perm=list(perm))

    def sum_last(self, x: str, size: int, factor: float = 1.0) -> str:
        """``factor`` times the sum over the last axis, which is kept with size 1.

        It is a product with ones, because pnnx loses the axis of a ReduceSum over one axis.
        """
        return self.op("MatMul", x, self.constant(np.full((size, 1), factor)))

    def sum_second_to_last(self, x: str, size: int) -> str:
        """The sum over the second to last axis, which is kept with size 1; also a product with ones."""
        return self.op("MatMul", self.constant(np.ones((1, size))), x)


# --- Votes ---

MANY = 16  # from this many positions upwards, one product per parent is faster than one for all


def grid(
    height: int, width: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> tuple[int, int]:
    """Output grid of a capsule convolution without padding."""
    return (height - kernel[0]) // strides[0] + 1, (width - kernel[1]) // strides[1] + 1


def window_index(
    height: int, width: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> np.ndarray:
    """The cell of the flattened grid that is the k-th of each window: ``[S, Kh*Kw]``."""
    h, w = grid(height, width, kernel, strides)
    rows = (np.arange(h) * strides[0])[:, None] + np.arange(kernel[0])
    columns = (np.arange(w) * strides[1])[:, None] + np.arange(kernel[1])
    cells = rows[:, None, :, None] * width + columns[None, :, None, :]
    return cells.reshape(h * w, kernel[0] * kernel[1])


def gather_windows(b: Body, x: str, height: int, width: int, cell: int, index: np.ndarray) -> str:
    """Children of each output position: ``[N, S*Kh*Kw, cell]`` from ``[N, height, width, ...]``.

    Args:
        cell: elements in one cell of the grid.
        index: of ``window_index``.
    """
    flat = b.reshape(x, b.batched(), height * width, cell)
    order = index.reshape(-1)
    if np.array_equal(order, np.arange(height * width)):
        return flat  # one window over the whole grid, or 1x1 windows over all of it
    return b.op("Gather", flat, b.ints(order.tolist()), axis=1)


def votes(
    b: Body, children: str, weight: str, positions: int, sizes: tuple[int, int, int, int, int]
) -> str:
    """Write the nodes that compute votes ``[N·S, M, I, R·L]``.

    Args:
        children: ``[N, S*I*R*K]`` in this order, in any shape.
        weight: ``[I, K, M*L]``.
        positions: S.
        sizes: I, R, K, M, L.
    """
    i, r, k, m, out = sizes
    places, lines = b.batched(positions), b.batched(positions * r)
    x = b.transpose(b.reshape(children, places, i, r * k), 1, 0, 2)
    if r > 1 and max(positions, places) >= MANY:
        per_parent = b.transpose(b.reshape(weight, i, k, m, out), 2, 0, 1, 3)
        v = b.op("MatMul", b.reshape(x, 1, i, lines, k), per_parent)  # [M, I, N·S·R, L]
        v = b.transpose(b.reshape(v, m * i, places, r * out), 1, 0, 2)
        return b.reshape(v, places, m, i, r * out)
    v = b.op("MatMul", b.reshape(x, i, lines, k), weight)  # [I, N·S·R, M·L]
    if r == 1 or places == 1:
        # Keep the position's dimension even if it is 1: without it, ONNX Runtime is 3 times slower.
        v = b.transpose(b.reshape(v, i * r, places, m, out), 1, 2, 0, 3)
    else:
        v = b.transpose(b.reshape(v, i, places, r, m, out), 1, 3, 0, 2, 4)
    return v if r == 1 else b.reshape(v, places, m, i, r * out)


def weighted_sum(b: Body, couplings: str, v: str) -> str:
    """``Σ_i c_i V_i``: couplings ``[N·S or 1, M, 1, I]`` and votes give ``[N·S, M, 1, P]``."""
    return b.op("MatMul", couplings, v)


def row(b: Body, x: str) -> str:
    """``[N·S or 1, M, I]`` as ``[N·S or 1, M, 1, I]``."""
    return b.op("Unsqueeze", x, b.ints([2]))


def agreement(
    b: Body, v: str, parents: str, sizes: tuple[int, int, int, int], scale: float = 1.0
) -> str:
    """Write the nodes of ``scale · V_i · parent``: votes and parents give ``[N·S, M, I]``.

    Args:
        sizes: S, M, I, P; I is -1 where it is free, which needs S = 1.
    """
    s, m, i, p = sizes
    places = b.batched(s)
    column = b.reshape(parents, places, m, p, 1)
    if scale != 1.0:
        column = b.op("Mul", column, b.constant(scale))
    return b.reshape(b.op("MatMul", v, column), 0 if i == -1 else places, m, i)
