"""One graph with a free batch of two that were captured at different batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.proto import copy_of, initializer, replace

Integers = NDArray[np.int64]


class NotAlike(ValueError):
    """The graphs differ in more than numbers that follow the batch."""


def merge(
    small: onnx.ModelProto, large: onnx.ModelProto, batches: tuple[int, int], name: str
) -> onnx.ModelProto:
    """The graph in which every whole number that differs is computed from the batch that comes in.

    A number that is ``a`` at one batch and ``b`` at the other is a multiple of the batch plus a constant;
    it is read off the two. Captured from code without branches on the batch, the nodes are the same.

    Args:
        batches: of the two.
        name: of the free dimension.

    Raises:
        NotAlike: nodes, attributes or weights differ, or a number does not follow the batch.
    """
    model, other = (_constants_stored(copy_of(m)) for m in (small, large))
    if len(model.graph.node) != len(other.graph.node):
        raise NotAlike("the number of nodes depends on the batch")
    for a, b in zip(model.graph.node, other.graph.node, strict=True):
        if _key(a) != _key(b):
            raise NotAlike(f"{a.op_type} {a.name} depends on the batch")
    stored = {t.name: t for t in other.graph.initializer}
    if {t.name for t in model.graph.initializer} != stored.keys():
        raise NotAlike("the constants depend on the batch")
    nodes: list[onnx.NodeProto] = []
    kept: list[onnx.TensorProto] = []
    for tensor in model.graph.initializer:
        a, b = (numpy_helper.to_array(t) for t in (tensor, stored[tensor.name]))
        if (
            a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        ):
            kept.append(tensor)
            continue
        times, plus = _line(tensor.name, a, b, batches)
        if times.ndim == 1 and _one(times, plus) and _only_reshapes(model, tensor.name):
            kept.append(initializer(tensor.name, np.where(times != 0, -1, a)))
            continue
        nodes += _computed(tensor.name, times, plus, model.graph.input[0].name, kept)
    replace(model.graph.initializer, kept)
    replace(model.graph.node, [*nodes, *model.graph.node])
    del model.graph.value_info[:]
    for mine, its in zip(_values(model), _values(other), strict=True):
        for d, e in zip(
            mine.type.tensor_type.shape.dim, its.type.tensor_type.shape.dim, strict=True
        ):
            if d.dim_value != e.dim_value:
                if (d.dim_value, e.dim_value) != batches:
                    raise NotAlike(f"a dimension of {mine.name} is a multiple of the batch")
                d.dim_param = name
    return model


def _values(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    yield from model.graph.input
    yield from model.graph.output


def _constants_stored(model: onnx.ModelProto) -> onnx.ModelProto:
    """Constant nodes made initializers."""
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
    replace(model.graph.node, left)
    return model


def _key(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
    return node.op_type, node.domain, tuple(node.input), tuple(node.output), attributes


def _line(
    name: str, a: NDArray[np.generic], b: NDArray[np.generic], batches: tuple[int, int]
) -> tuple[Integers, Integers]:
    """``a = times·batch + plus``."""
    if a.shape != b.shape or a.dtype != np.int64 or b.dtype != np.int64:
        raise NotAlike(f"the constant {name} depends on the batch")
    whole_a, whole_b = a.astype(np.int64), b.astype(np.int64)
    times, rest = np.divmod(whole_b - whole_a, batches[1] - batches[0])
    if rest.any():
        raise NotAlike(f"the constant {name} does not follow the batch")
    return times, whole_a - times * batches[0]


def _one(times: Integers, plus: Integers) -> bool:
    """Whether a shape has one dimension that is a multiple of the batch, and no other that is inferred."""
    one = np.count_nonzero(times) == 1
    return bool(one and not plus[times != 0].any() and (plus >= 0).all())


def _only_reshapes(model: onnx.ModelProto, name: str) -> bool:
    """Whether a shape, or a part that is put together with known sizes, is used for nothing else."""
    uses = [n for n in model.graph.node if name in n.input]
    stored = {
        t.name: numpy_helper.to_array(t)
        for t in model.graph.initializer
        if t.data_type == TensorProto.INT64
    }
    for node in uses:
        if node.op_type == "Concat":
            others = [i for i in node.input if i != name]
            known = all(i in stored and (stored[i] > 0).all() for i in others)
            if not known or len(others) + 1 != len(node.input):
                return False
            if not _only_reshapes(model, node.output[0]):
                return False
        elif node.op_type != "Reshape" or node.input[1] != name:
            return False
    return True


def _computed(
    name: str, times: Integers, plus: Integers, source: str, kept: list[onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    """Nodes that make ``times·batch + plus`` of the first dimension of an input."""
    kept += [initializer(f"{name}/times", times), initializer(f"{name}/plus", plus)]
    yield helper.make_node("Shape", [source], [f"{name}/batch"], start=0, end=1)
    batch = f"{name}/batch"
    if times.ndim == 0:
        kept.append(initializer(f"{name}/scalar", np.zeros(0, np.int64)))
        yield helper.make_node("Reshape", [batch, f"{name}/scalar"], [f"{name}/one"])
        batch = f"{name}/one"
    yield helper.make_node("Mul", [batch, f"{name}/times"], [f"{name}/product"])
    yield helper.make_node("Add", [f"{name}/product", f"{name}/plus"], [name])
