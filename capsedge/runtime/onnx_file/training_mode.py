"""Refuse files in training mode, whose results depend on a batch's other images or on random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from capsedge.errors import UnsupportedModelError
from capsedge.runtime.files.text import printable
from capsedge.runtime.onnx_file.stored_values import stored_numbers
from capsedge.runtime.onnx_file.structure import GraphStructure, Node, structure_of
from capsedge.runtime.onnx_file.summary import OnnxSummary

STANDARD = ("", "ai.onnx")
# By type: the positions of the ratio and the training mode among the inputs.
DROPOUTS = {
    "Dropout": (1, 2),
    "BitmaskDropout": (1, 2),
    "BiasDropout": (3, 4),
    "BitmaskBiasDropout": (3, 4),
}
DROPOUT_DOMAINS = (*STANDARD, "com.microsoft")
SIZES_ONLY = ("Shape", "Size")  # their result does not depend on the values of their input
SAME = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")


def refuse_training(data: bytes, summary: OnnxSummary, name: str) -> None:
    """Refuse a BatchNormalization in training mode, and a Dropout in training mode that an output depends on.

    Args:
        data: an ONNX file.
        summary: what `summarize` found in it.
        name: its name in errors.

    Raises:
        UnsupportedModelError: names the node.
    """
    found = summary.training
    if found:
        raise UnsupportedModelError(
            f"{name} is in training mode: the result of an image depends on the others of its batch.",
            f"The node '{printable(found[0])}' (BatchNormalization) normalizes with the mean of the batch"
            + (f", and {len(found) - 1} more." if len(found) > 1 else "."),
            "Export it again in evaluation mode: model.eval().",
        )
    # Most files have no Dropout, and need no second walk.
    if any(kind in DROPOUTS for domain, kind in summary.operators if domain in DROPOUT_DOMAINS):
        drawing = _drawing(data, name)
        if drawing:
            raise random_error(name, drawing)


def random_error(name: str, nodes: Sequence[tuple[str, str]]) -> UnsupportedModelError:
    """The error for a file with nodes that draw random numbers, by name and type."""
    label, kind = nodes[0]
    training = any(kind in DROPOUTS for _, kind in nodes)
    return UnsupportedModelError(
        f"{name} draws random numbers: two runs of the same input differ, so results cannot be "
        "compared with it.",
        f"An output depends on the node '{printable(label)}' ({kind})"
        + (f", and on {len(nodes) - 1} more that draw random numbers." if len(nodes) > 1 else "."),
        "Export it again "
        + ("in evaluation mode: model.eval(), F.dropout(x, p, training=self.training)"
           if training
           else "with the numbers as a buffer (self.register_buffer) or as an input")
        + ".",
    )  # fmt: skip


def _drawing(data: bytes, name: str) -> list[tuple[str, str]]:
    """Name and type of the Dropouts in training mode that affect an output."""
    model = structure_of(data, name)
    single = (each for each in stored_numbers(data) if each.values.size == 1)
    on = {each.name: bool(each.values.any()) for each in single}
    whole = [(model.graph, [value.name for value in model.graph.outputs])]
    # Of a function, outputs are not read; all its nodes count.
    whole += [(f, [name for node in f.nodes for name in node.outputs]) for f in model.functions]
    found = []
    for graph, outputs in whole:
        walked = list(graph.walk())
        known = _passed_on(walked, on)
        computed = {name for node in walked for name in node.outputs if name}
        for node in _reaching(graph, outputs):
            ratio, mode = (_input(node, k) for k in DROPOUTS.get(node.op, (-1, -1)))
            if not mode:  # without the input: before opset 12, and by default
                continue
            # A mode that is an input of the file is the choice of whoever runs it.
            if known.get(mode, mode in computed) and known.get(ratio, True):
                found.append((node.name or next(filter(None, node.outputs), ""), node.op))
    return found


def _input(node: Node, place: int) -> str:
    drops = place >= 0 and node.domain in DROPOUT_DOMAINS
    return node.inputs[place] if drops and len(node.inputs) > place else ""


def _passed_on(nodes: Sequence[Node], on: Mapping[str, bool]) -> dict[str, bool]:
    known = dict(on)
    for node in nodes:
        if node.op in SAME and node.inputs and node.outputs and node.inputs[0] in known:
            known[node.outputs[0]] = known[node.inputs[0]]
    return known


def _reaching(graph: GraphStructure, outputs: Sequence[str]) -> Iterator[Node]:
    """The nodes whose values affect an output, with those of nested bodies."""
    maker = {name: node for node in graph.nodes for name in node.outputs if name}
    wanted, seen = list(outputs), set[int]()
    while wanted:
        node = maker.get(wanted.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if node.op in SIZES_ONLY and node.domain in STANDARD:
            continue
        wanted += node.inputs
        for body in node.bodies:
            yield from _reaching(body, [value.name for value in body.outputs])
            wanted += _read_in(body)


def _read_in(body: GraphStructure) -> Iterator[str]:
    for inner in body.graphs():
        yield from (value.name for value in inner.outputs)
        yield from (name for node in inner.nodes for name in node.inputs)
