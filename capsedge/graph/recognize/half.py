"""Files in FP16 or BF16: recognized in FP32, which holds all their numbers, and written in their types.

Capsule operators compute in FP32 between two casts, so that the result is no less exact than the file was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.proto import copy_of, initializer, replace
from capsedge.graph.recognize.edit import Edit
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.values import Values

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SMALL = 1024  # elements of a constant that may stay in FP32


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether anything in a graph is FP16 or BF16."""
    if any(v.type.tensor_type.elem_type in HALF for v in (*model.graph.input, *model.graph.output)):
        return True
    if any(t.data_type in HALF for t in model.graph.initializer):
        return True
    return any(
        (a.name in ("to", "dtype") and a.i in HALF) or (a.HasField("t") and a.t.data_type in HALF)
        for node in _nodes(model.graph)
        for a in node.attribute
    )


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in FP32, under the same names."""
    copy = copy_of(model)
    for graph in _graphs(copy.graph):
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in HALF:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for tensor in graph.initializer:
            _widen(tensor)
        for tensor in (a.t for node in graph.node for a in node.attribute if a.HasField("t")):
            _widen(tensor)
        for attribute in (a for node in graph.node for a in node.attribute):
            if attribute.name in ("to", "dtype") and attribute.i in HALF:
                attribute.i = TensorProto.FLOAT
        del graph.value_info[:]
    return copy


def widened_as(model: onnx.ModelProto, truth: onnx.ModelProto) -> onnx.ModelProto:
    """``widened``, what was folded in FP16 as it is in FP32.

    Args:
        truth: the widened file before it was folded, which has nodes for what is constant now.
    """
    copy = widened(model)
    folded = {o for n in truth.graph.node for o in n.output} & {
        t.name for t in copy.graph.initializer
    }
    try:
        values = Values(truth) if folded else None
    except NotRecognized:
        values = None
    for tensor in copy.graph.initializer:
        if values is not None and tensor.name in folded & values.constant:
            value = np.asarray(values.value[tensor.name])
            if tensor.data_type == TensorProto.FLOAT and value.shape == tuple(tensor.dims):
                tensor.CopyFrom(initializer(tensor.name, value))
    return copy


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALF:
        name = tensor.name
        tensor.CopyFrom(initializer(name, numpy_helper.to_array(tensor).astype(np.float32)))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for each in _graphs(graph):
        yield from each.node


def between_casts(edit: Edit, kinds: Mapping[str, int]) -> None:
    """Make an edit of the widened graph one of the original: casts where it reads and makes halves, in place.

    Args:
        kinds: element type of every tensor of the original.
    """
    names: dict[str, str] = {}
    ahead, behind = [], []
    for name in sorted(edit.reads):
        if kinds.get(name) in HALF:
            names[name] = f"{edit.tag}_wide_{len(names)}"
            ahead.append(helper.make_node("Cast", [name], [names[name]], to=TensorProto.FLOAT))
    for name in edit.results:
        if kinds.get(name) in HALF:
            names[name] = f"{edit.tag}_wide_{len(names)}"
            behind.append(helper.make_node("Cast", [names[name]], [name], to=kinds[name]))
    for node in edit.nodes:
        replace(node.input, [names.get(i, i) for i in node.input])
        replace(node.output, [names.get(o, o) for o in node.output])
    for value in edit.values:
        value.name = names.get(value.name, value.name)
    edit.nodes = [*ahead, *edit.nodes, *behind]


def store_halves(model: onnx.ModelProto) -> None:
    """Store FP32 constants that FP16 holds exactly as FP16, widened when the file is loaded, in place."""
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < _SMALL:
            continue
        value = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            half = value.astype(np.float16)
        if np.array_equal(half.astype(np.float32), value):
            name = tensor.name
            tensor.CopyFrom(initializer(f"{name}/half", half))
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    if casts:
        replace(model.graph.node, [*casts, *model.graph.node])
