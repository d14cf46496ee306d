"""Reading and changing an ONNX ModelProto: nodes, attributes, constants, opsets. Knows no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that shares nothing with the model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def replace(field: Any, items: Iterable[object]) -> None:
    """Give a repeated field of a message other items."""
    items = list(items)
    del field[:]
    field.extend(items)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def captured_by(node: onnx.NodeProto) -> set[str]:
    """Tensors of the graphs outside that the subgraphs of a node (If, Loop, Scan) read."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            own |= {o for inner in graph.node for o in inner.output}
            read = {i for inner in graph.node for i in inner.input if i}
            read |= {o.name for o in graph.output}
            for inner in graph.node:
                read |= captured_by(inner)
            found |= read - own
    return found


def initializer(name: str, value: NDArray[Any] | np.generic) -> onnx.TensorProto:
    """An initializer of a numpy array or number."""
    return numpy_helper.from_array(np.asarray(value, order="C"), name)


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Initializers and Constant nodes of the graph by name."""
    found = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def operator_nodes(model: onnx.ModelProto, domain: str = DOMAIN) -> list[onnx.NodeProto]:
    """The capsule operators of the graph, in order."""
    return [n for n in model.graph.node if n.domain == domain]


def operator_counts(model: onnx.ModelProto) -> dict[str, int]:
    """How many nodes of each type the graph has; capsule operators as ``capsedge::Type``."""
    return dict(
        sorted(
            Counter(
                f"{n.domain}::{operator_of(n.op_type)}" if n.domain else n.op_type
                for n in model.graph.node
            ).items()
        )
    )


def set_opset(model: onnx.ModelProto, domain: str, version: int | None) -> None:
    """Import a domain at a version, or no longer (None). The default domain stays first."""
    versions = {e.domain: e.version for e in model.opset_import if e.domain != domain}
    if version is not None:
        versions[domain] = version
    replace(model.opset_import, [helper.make_opsetid(d, versions[d]) for d in sorted(versions)])


def opset_of(model: onnx.ModelProto) -> int:
    """Opset of the standard operators."""
    return next(int(e.version) for e in model.opset_import if e.domain in ("", "ai.onnx"))


def check_operators(model: onnx.ModelProto) -> list[str]:
    """What is wrong with the capsule operators of a model: unknown types, missing attributes."""
    problems = []
    for node in operator_nodes(model):
        spec = OPERATORS.get(operator_of(node.op_type))
        if spec is None:
            problems.append(f"unknown operator {node.op_type}")
        elif set(attributes_of(node)) != set(spec.attribute_names):
            problems.append(
                f"{node.op_type} '{node.name}': attributes {sorted(attributes_of(node))}"
            )
        elif not spec.takes(len(node.input)) or not all(node.input):
            problems.append(f"{node.op_type} '{node.name}': {len(node.input)} inputs")
    return problems
