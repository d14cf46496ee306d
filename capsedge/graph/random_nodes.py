"""Find nodes that draw random numbers: the results of a file with such a node cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from capsedge.runtime.onnx_file.training_mode import (
    DROPOUT_DOMAINS,
    DROPOUTS,
    SAME,
    SIZES_ONLY,
    STANDARD,
    random_error,
)

_RANDOM = {
    **dict.fromkeys(
        (
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ),
        STANDARD,
    ),
    "Sampling": ("com.microsoft",),
}

Key = tuple[str, str, str]


@dataclass(frozen=True)
class RandomNode:
    """A node that draws random numbers.

    Attributes:
        name: its own name, otherwise that of its output.
        operator: its type.
        output: of its first output.
    """

    name: str
    operator: str
    output: str


def random_nodes(model: onnx.ModelProto) -> list[RandomNode]:
    """The nodes that draw random numbers on which an output depends, in subgraphs and functions too.

    A Dropout counts if its training mode is not the constant false and its ratio not the constant 0. A draw
    whose shape alone is read does not count.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    found: list[RandomNode] = []
    entered: set[Key] = set()

    def walk(
        nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], known: dict[str, onnx.TensorProto]
    ) -> None:
        nodes = list(nodes)
        for node in _reaching(nodes, outputs):
            if _draws(node, known):
                name = node.name or next(filter(None, node.output), "")
                found.append(RandomNode(name, node.op_type, next(filter(None, node.output), "")))
            for graph in _subgraphs(node):
                walk(
                    graph.node,
                    [o.name for o in graph.output],
                    {**known, **_constants(graph.node, graph.initializer)},
                )
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in entered:
                entered.add(key)
                body = functions[key]
                walk(body.node, body.output, _constants(body.node, ()))

    graph = model.graph
    inputs = {i.name for i in graph.input}  # its value may be changed by the caller
    stored = [t for t in graph.initializer if t.name not in inputs]
    walk(graph.node, [o.name for o in graph.output], _constants(graph.node, stored))
    return found


def refuse_random(model: onnx.ModelProto, name: str = "The file") -> None:
    """Refuse a file whose results are random.

    Raises:
        UnsupportedModelError: names its random nodes.
    """
    found = random_nodes(model)
    if found:
        raise random_error(name, [(node.name, node.operator) for node in found])


def _reaching(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> Iterator[onnx.NodeProto]:
    """The nodes whose values affect an output, in the graph's order."""
    maker = {o: k for k, node in enumerate(nodes) for o in node.output if o}
    live: set[int] = set()
    wanted = list(outputs)
    while wanted:
        at = maker.get(wanted.pop())
        if at is None or at in live:
            continue
        live.add(at)
        node = nodes[at]
        if node.op_type in SIZES_ONLY and node.domain in STANDARD:
            continue
        wanted += [i for i in node.input if i]
        for graph in _subgraphs(node):
            wanted += _outer(graph)
    return (nodes[k] for k in sorted(live))


def _outer(graph: onnx.GraphProto) -> list[str]:
    """All names that a subgraph reads or returns; its own names among them are harmless."""
    names = [o.name for o in graph.output]
    for node in graph.node:
        names += node.input
        for inner in _subgraphs(node):
            names += _outer(inner)
    return [n for n in names if n]


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _constants(
    nodes: Sequence[onnx.NodeProto], stored: Sequence[onnx.TensorProto]
) -> dict[str, onnx.TensorProto]:
    """Constant values by name, including those only passed on."""
    known = {t.name: t for t in stored}
    for node in nodes:
        if node.op_type == "Constant" and node.domain in STANDARD and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    known[node.output[0]] = attribute.t
                elif attribute.name in ("value_float", "value_int"):
                    value = attribute.f if attribute.name == "value_float" else attribute.i
                    known[node.output[0]] = onnx.helper.make_tensor(
                        "", onnx.TensorProto.FLOAT, (), [value]
                    )
        elif node.op_type in SAME and node.input and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    return known


def _draws(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> bool:
    if node.domain in _RANDOM.get(node.op_type, ()):
        return True
    places = DROPOUTS.get(node.op_type)
    if places is None or node.domain not in DROPOUT_DOMAINS:
        return False
    ratio, training = (node.input[k] if len(node.input) > k else "" for k in places)
    if not training or _is_zero(
        training, known
    ):  # without the input: before opset 12, and by default
        return False
    return not (ratio and _is_zero(ratio, known))


def _is_zero(name: str, known: dict[str, onnx.TensorProto]) -> bool:
    """Whether a value is known, and zero or false."""
    return name in known and not numpy_helper.to_array(known[name]).any()
