"""Find nodes that draw random numbers: the results of a file with such a node cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from capsedge.graph.ir import Graph, inner_graphs, reads
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
        graph = Graph(nodes)
        for node in (graph.nodes[k] for k in graph.before(outputs, _followed)):
            if _draws(node, known):
                name = node.name or next(filter(None, node.output), "")
                found.append(RandomNode(name, node.op_type, next(filter(None, node.output), "")))
            for inner in inner_graphs(node):
                walk(
                    inner.node,
                    [o.name for o in inner.output],
                    {**known, **_constants(inner.node, inner.initializer)},
                )
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in entered:
                entered.add(key)
                body = functions[key]
                walk(body.node, body.output, _constants(body.node, ()))

    main = model.graph
    inputs = {i.name for i in main.input}  # its value may be changed by the caller
    stored = [t for t in main.initializer if t.name not in inputs]
    walk(main.node, [o.name for o in main.output], _constants(main.node, stored))
    return found


def refuse_random(model: onnx.ModelProto, name: str = "The file") -> None:
    """Refuse a file whose results are random.

    Raises:
        UnsupportedModelError: names its random nodes.
    """
    found = random_nodes(model)
    if found:
        raise random_error(name, [(node.name, node.operator) for node in found])


def _followed(node: onnx.NodeProto) -> list[str]:
    """The values that a node's own values depend on; none if it reads their sizes alone."""
    sizes_only = node.op_type in SIZES_ONLY and node.domain in STANDARD
    return [] if sizes_only else reads(node)


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
