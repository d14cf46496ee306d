"""Run nodes in FP64, and keep samples of the values of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

# --- Nodes in FP64 ---


def to_fp64(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes in FP64; Softplus and Sigmoid, which ONNX Runtime has not or with few digits, written out."""
    for node in nodes:
        if node.op_type in ("Softplus", "Sigmoid") and not node.domain:
            yield from _written_out(node)
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                wide = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(wide))
        yield copy


def _written_out(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """``1/(1 + exp -x)``, and ``log(1 + exp x)``."""
    x, y = node.input[0], node.output[0]
    soft = node.op_type == "Softplus"
    one = numpy_helper.from_array(np.array(1.0))
    yield helper.make_node("Constant", [], [f"{y}/one"], value=one)
    if not soft:
        yield helper.make_node("Neg", [x], [f"{y}/negative"])
    yield helper.make_node("Exp", [x if soft else f"{y}/negative"], [f"{y}/power"])
    yield helper.make_node("Add", [f"{y}/power", f"{y}/one"], [f"{y}/sum"])
    yield helper.make_node("Log" if soft else "Reciprocal", [f"{y}/sum"], [y])


# --- Samples of tensors, which are not kept themselves ---

_FEW = 1 << 14  # elements of a value that are kept


@dataclass(frozen=True)
class ValueSummary:
    """What is kept of a value.

    Attributes:
        shape, kind, nbytes: of it; no kind of what is no tensor.
        few: evenly spaced elements, all of a small one; None of what is not FP32.
    """

    shape: tuple[int, ...]
    kind: np.dtype[Any] | None
    nbytes: int
    few: NDArray[Any] | None

    @classmethod
    def of(cls, value: Any) -> ValueSummary:
        array = np.asarray(value)
        few = None
        if array.dtype == np.float32:
            few = array.reshape(-1)[:: max(1, array.size // _FEW)].copy()
        kind = array.dtype if isinstance(value, (np.ndarray, np.generic)) else None
        return cls(tuple(np.shape(value)), kind, array.nbytes, few)

    def resembles(self, other: ValueSummary) -> bool:
        """Whether two values seem the same, but for rounding."""
        if self.few is None or other.few is None or self.shape != other.shape:
            return False
        near = 1e-6 * np.abs(other.few).max(initial=0)
        return bool(np.allclose(self.few, other.few, 1e-5, near))


# --- Inputs that are indices, and the size of the table that they look up ---

# What the elements of the first input pass through unchanged, or joined with others.
_PASSING = frozenset(
    ("Cast", "Concat", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "Identity", "Reshape",
     "Round", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip


def table_sizes(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, NDArray[np.generic]],
    inputs: Sequence[str],
) -> dict[str, int]:
    """Entries of the smallest table that an input indexes, by input.

    Looked at are ``OneHot``, and ``Gather`` and ``GatherElements`` from stored tables, quantized or not.
    """
    maker = {o: n for n in nodes for o in n.output if o}
    found: dict[str, int] = {}
    for node in nodes:
        size = _size(node, weights, maker)
        if size is None:
            continue
        at = node.input[0 if node.op_type == "OneHot" else 1]
        for name in _origins(at, maker, inputs):
            found[name] = min(size, found.get(name, size))
    return found


def _size(
    node: onnx.NodeProto,
    weights: Mapping[str, NDArray[np.generic]],
    maker: Mapping[str, onnx.NodeProto],
) -> int | None:
    """Entries of the table that a node looks up; None where it is no look-up, or the size is not stored."""
    if node.op_type == "OneHot":
        depth = weights.get(node.input[1])
        return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])
    if node.op_type not in ("Gather", "GatherElements"):
        return None
    name = node.input[0]
    while name in maker and maker[name].op_type in ("DequantizeLinear", "Identity", "Cast"):
        name = maker[name].input[0]
    table = weights.get(name)
    if table is None or not table.ndim:
        return None
    axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
    return int(table.shape[axis]) or None


def _origins(name: str, maker: Mapping[str, onnx.NodeProto], inputs: Sequence[str]) -> list[str]:
    """The inputs that a tensor's elements come from."""
    found, queue, seen = [], [name], {name}
    for each in queue:
        if each in inputs:
            found.append(each)
        node = maker.get(each)
        if node is None:
            continue
        if node.op_type in _PASSING:
            sources = list(node.input) if node.op_type == "Concat" else list(node.input[:1])
        elif node.op_type == "Where":  # as exporters write indices that may count from the end
            sources = list(node.input[1:])
        else:
            continue
        queue += [s for s in sources if s and s not in seen]
        seen.update(sources)
    return found
