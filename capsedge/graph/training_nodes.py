"""Find nodes in training mode that make the result of an image depend on the others of its batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from capsedge.errors import UnsupportedModelError
from capsedge.graph.proto import attributes_of
from capsedge.runtime.files.text import printable

_STANDARD = ("", "ai.onnx")
_BEFORE_THE_ATTRIBUTE = 14  # opset; until then, more outputs than one meant training


def refuse_training(model: onnx.ModelProto, name: str) -> None:
    """Refuse a file with a BatchNormalization in training mode.

    Raises:
        UnsupportedModelError: names the node.
    """
    opset = next((e.version for e in model.opset_import if e.domain in _STANDARD), 1)
    nodes = [*_nodes(model.graph.node)]
    nodes += [node for function in model.functions for node in _nodes(function.node)]
    found = [node for node in nodes if _trains(node, opset)]
    if not found:
        return
    first = found[0].name or next(filter(None, found[0].output), "")
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    raise UnsupportedModelError(
        f"{name} is in training mode: the result of an image depends on the others of its batch.",
        f"The node '{printable(first)}' (BatchNormalization) normalizes with the mean of the batch{more}.",
        "Export it again in evaluation mode: model.eval().",
    )


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in ([attribute.g] if attribute.HasField("g") else []) + list(
                attribute.graphs
            ):
                yield from _nodes(graph.node)


def _trains(node: onnx.NodeProto, opset: int) -> bool:
    if node.op_type != "BatchNormalization" or node.domain not in _STANDARD:
        return False
    if opset < _BEFORE_THE_ATTRIBUTE:
        return len([o for o in node.output if o]) > 1
    return bool(attributes_of(node).get("training_mode", 0))
