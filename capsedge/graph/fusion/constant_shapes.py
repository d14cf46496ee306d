"""Replace what does not depend on the input: slice bounds, Reshape targets, a softmax over one element.

A layer with a single parent, such as the last one of SegCaps, has couplings that are all 1.
"""

from __future__ import annotations

import numpy as np
import onnx

from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.ir import copy_of, initializer
from capsedge.graph.merge import FOLDED

_BATCHES = (2, 3, 5)
_LARGEST = 1 << 20  # maximum number of elements of a value that becomes an initializer

# --- Values computed from fixed sizes ---


def constant_shapes(graph: Values) -> tuple[onnx.ModelProto, int]:
    """A copy with initializers for values that depend only on fixed sizes, and how many there are.

    Such a value is computed from shapes and constants and is compared at three batch sizes. If it never
    changes, it is constant. In a Reshape target, one entry may change if no other is 0 or -1: it becomes -1,
    which is equivalent because a Reshape keeps the number of elements. Dequantized weights stay integers.
    """
    model = graph.model
    if not graph.free:
        return model, 0
    targets = {n.input[1] for n in graph.nodes if n.op_type == "Reshape"}
    wanted = sorted(
        {
            name
            for users in (n.input for n in graph.nodes if n.output[0] not in graph.constant)
            for name in users
            if name in graph.constant and name not in graph.weights and not graph.is_quantized(name)
        }
    )
    if not wanted:
        return model, 0
    views = [n.output[0] for n in graph.nodes if n.op_type == "Reshape" and n.input[1] in wanted]
    probe = copy_of(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (*wanted, *views))
    try:
        session = session_of(probe)
        runs = [session.run([*wanted, *views], graph.feeds(b)) for b in _BATCHES]
    except Exception:  # ONNX Runtime's errors have no common public base
        return model, 0
    seen = [r[: len(wanted)] for r in runs]
    shapes = zip(*([np.array(np.shape(v)) for v in r[len(wanted) :]] for r in runs), strict=True)
    known: dict[str, Array] = {}
    for name, values in zip(wanted, zip(*seen, strict=True), strict=True):
        value = _constant([np.asarray(v) for v in values], name in targets)
        if value is not None and value.size <= _LARGEST:
            known[name] = value
    copy = copy_of(model)
    # The output shape is more informative than a target that already contains -1.
    found = {name: _constant(list(each), True) for name, each in zip(views, shapes, strict=True)}
    made = 0
    for node in copy.graph.node:
        shape = found.get(node.output[0]) if node.output else None
        if shape is not None and node.input[1] not in known:
            node.input[1] = f"{node.output[0]}/shape"
            copy.graph.initializer.append(initializer(node.input[1], shape))
            made += 1
    for name, value in known.items():
        copy.graph.initializer.append(initializer(name + FOLDED, value))
    for node in copy.graph.node:
        for k, name in enumerate(node.input):
            # Other nodes cannot use a target that contains -1.
            if name in known and (-1 not in known[name] or (node.op_type == "Reshape" and k == 1)):
                node.input[k] = name + FOLDED
    remove_dead_nodes(copy)
    return copy, len(known) + made


def _constant(runs: list[Array], target: bool) -> Array | None:
    """A value from runs at several batch sizes; None if it is not constant."""
    first = runs[0]
    if any(r.shape != first.shape or r.dtype != first.dtype for r in runs):
        return None
    varying = np.any([r != first for r in runs], axis=0)
    if not varying.any():
        return first
    rest = first[~varying] if target and first.ndim == 1 else np.zeros(1)
    if varying.sum() > 1 or (rest == 0).any() or (rest == -1).any():
        return None
    return np.where(varying, -1, first).astype(np.int64)


# --- Softmaxes over one element ---

_VIEWS = ("Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def without_single_softmaxes(graph: Values) -> tuple[onnx.ModelProto, int]:
    """A copy without softmaxes over an axis of one element, all of whose values are 1; and their number.

    A product with such values becomes its other factor. Other nodes read the first softmax of the same shape,
    so what is computed for the logits of the later ones is dropped.
    """
    ones: dict[str, str] = {}  # tensors of ones: the first of the same shape
    others: dict[str, str] = {}  # results of products with ones: the other factor
    first: dict[tuple[int, ...], str] = {}
    count = 0
    for node in graph.nodes:
        name = node.output[0] if node.output else ""
        if node.domain or name not in graph.shapes:
            continue
        if node.op_type == "Softmax" and _is_single(graph, node):
            count += 1
            ones[name] = first.setdefault(graph.shapes[name], name)
        elif node.op_type in _VIEWS and node.input[0] in ones:
            ones[name] = name
        elif node.op_type == "Mul":
            for one, other in (node.input, reversed(node.input)):
                if one in ones and graph.shapes.get(other) == graph.shapes[name]:
                    others[name] = others.get(other, other)
    if not others and all(name == same for name, same in ones.items()):
        return graph.model, 0
    copy = copy_of(graph.model)
    kept = {o.name for o in graph.model.graph.output}
    instead = {k: v for k, v in (ones | others).items() if k not in kept}
    for node in copy.graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = instead.get(name, name)
    remove_dead_nodes(copy)
    return copy, count


def _is_single(graph: Values, node: onnx.NodeProto) -> bool:
    """Whether a softmax normalizes over an axis of one element that does not count images."""
    shape = graph.shapes[node.output[0]]
    if not shape:
        return False
    axis = int(graph.attribute(node, "axis", -1)) % len(shape)
    return shape[axis] == 1 and (graph.batch > 1 or (axis > 0 and not graph.free))
