"""Dynamic routing that no operator has, as standard operators in the form of the portable bodies, if faster.

No agreement is computed after the last sum; nothing is approximated.

An estimate decides, from what the nodes read and write and what their kernels cost beside that. It is the
same in every run; a clock would make two files of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx

from capsedge.graph.recognize.edit import Edit, splice
from capsedge.graph.recognize.fit_dynamic import FoundDynamic
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.standard_forms import write_routing
from capsedge.graph.recognize.values import Values

_FORMS = "ABDE"  # squashes of ``formulas`` that are written here
NO_FASTER = "standard operators in another form would not be clearly faster"
LEAST_GAIN = 1.5  # below it the nodes stay what they are
# Measured with ONNX Runtime 1.31 on one core, in bytes that are copied in the same time.
_A_NODE, _A_PRODUCT = 128 << 10, 4 << 10  # a node of no work, one matrix product of a batch
_SOFTMAX, _REDUCTION = {True: 2, False: 8}, {True: 2, False: 6}  # whether along the last axis
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


def write_standard(graph: Values, found: FoundDynamic, tag: str) -> tuple[Edit, float]:
    """The nodes, and how many times faster than those of the file they are by estimate.

    Raises:
        NotRecognized: they cannot be written, or save too little.
    """
    kind = found.kind
    if kind.leaky or kind.batch_mean or kind.normalize or kind.form not in _FORMS:
        raise NotRecognized("it is not written anew")
    edit = Edit(graph, tag)
    v = write_routing(edit, found.votes, found.roles, kind)
    edit.write(v, found.layout, found.result)
    gain = _gain(graph, edit)
    if gain < LEAST_GAIN:
        raise NotRecognized(NO_FASTER)
    return edit, gain


def _gain(graph: Values, edit: Edit) -> float:
    """How many times less the nodes of the edit cost than those of the file that they stand for, an image.

    Raises:
        NotRecognized: the graph with the edit does not run.
    """
    after = Values(splice(graph.model, [edit]))
    old, new = ({o for n in g.nodes for o in n.output} for g in (graph, after))
    return _cost(graph, old - new) / _cost(after, new - old)


def _cost(graph: Values, made: set[str]) -> float:
    """Of the nodes that make tensors and are no views, for one image, in bytes moved."""
    costs = [
        _A_NODE + _moved(graph, node) / graph.batch
        for node in graph.nodes
        if node.op_type not in _VIEWS
        and not made.isdisjoint(node.output)
        and node.output[0] not in graph.constant
    ]
    return sum(costs)


def _moved(graph: Values, node: onnx.NodeProto) -> float:
    """Bytes that a node reads and writes, times what its kernel in ONNX Runtime costs beside them."""
    moved = sum(graph.seen[name].nbytes for name in (*node.input, *node.output) if name)
    if node.op_type == "MatMul":
        return moved + _A_PRODUCT * math.prod(graph.shapes[node.output[0]][:-2])
    if node.op_type == "Softmax":
        return moved * _SOFTMAX[_over_last(graph, node, [graph.attribute(node, "axis", -1)])]
    if node.op_type.startswith("Reduce"):
        axes = graph.attribute(node, "axes", None)
        if axes is None:
            axes = graph.value[node.input[1]] if len(node.input) > 1 else [-1]
        return moved * _REDUCTION[_over_last(graph, node, axes)]
    return moved


def _over_last(graph: Values, node: onnx.NodeProto, axes: Iterable[int]) -> bool:
    """Whether a node works along the last axis of several elements, which lie side by side."""
    shape = graph.shapes[node.input[0]]
    sizes = {int(a) % len(shape) for a in axes if shape[int(a)] > 1}
    return not sizes or all(math.prod(shape[a + 1 :]) == 1 or a + 1 in sizes for a in sizes)
