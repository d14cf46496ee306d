"""Reading and changing an ONNX ModelProto: shapes, constants, dead nodes, functions. Knows no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from capsedge.graph.bodies import Shape, function_body
from capsedge.graph.operators import OPERATORS, VERSION, attributes_of
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.simplify import FOLD_LIMIT, simplify
from capsedge.schema.names import DOMAIN, numbered, operator_of


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with shapes inferred, strictly: a contradiction is an error."""
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shape of every tensor of the graph that has one; None for a dimension without a number."""
    graph = model.graph
    shapes: dict[str, Shape] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            shapes[value.name] = tuple(
                d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim
            )
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    return shapes


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


def captured(graph: onnx.GraphProto) -> set[str]:
    """The tensors that graphs inside nodes (If, Loop) may use."""
    inner = [
        each
        for node in graph.node
        for a in node.attribute
        for each in ([a.g] if a.HasField("g") else a.graphs)
    ]
    names = {i for g in inner for n in g.node for i in n.input} | {
        o.name for g in inner for o in g.output
    }
    return names.union(*(captured(g) for g in inner))


def remove_dead_nodes(model: onnx.ModelProto, keep_domain: str | None = None) -> int:
    """Remove the nodes and initializers that reach no output; returns how many nodes.

    Args:
        keep_domain: nodes of this domain, and what they need, stay although they reach no output.
    """
    graph = model.graph
    live = {o.name for o in graph.output} | captured(graph)
    kept = []
    for node in reversed(graph.node):
        if node.domain == keep_domain or any(o in live for o in node.output):
            kept.append(node)
            live.update(node.input)
    removed = len(graph.node) - len(kept)
    _replace(graph.node, reversed(kept))
    remove_unused_tensors(model)
    return removed


def remove_unused_tensors(model: onnx.ModelProto) -> None:
    """Remove the initializers and value descriptions that no node uses."""
    graph = model.graph
    used = {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
    used |= captured(graph)
    made = {o for n in graph.node for o in n.output}
    _replace(graph.initializer, [t for t in graph.initializer if t.name in used])
    _replace(graph.value_info, [v for v in graph.value_info if v.name in used and v.name in made])


def _replace(field: object, items: Iterable[object]) -> None:
    items = list(items)
    del field[:]  # type: ignore[attr-defined]
    field.extend(items)  # type: ignore[attr-defined]


def fold_fills(model: onnx.ModelProto) -> None:
    """Turn ``ConstantOfShape`` of a constant shape into an initializer (zeros that stand for "none")."""
    constants = constants_of(model)
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = numpy_helper.to_array(constants[node.input[0]])
            fill = (
                numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, "f4")
            )
            if int(np.prod(shape)) <= FOLD_LIMIT:
                value = np.full(shape, fill.reshape(-1)[0], fill.dtype)
                model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
                continue
        kept.append(node)
    _replace(model.graph.node, kept)
    remove_unused_tensors(model)


def strip_notes(model: onnx.ModelProto) -> None:
    """Remove what the exporter wrote about the machine it ran on: stack traces, source paths."""
    graph = model.graph
    graph.name = "capsedge"
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    del graph.metadata_props[:]
    del model.metadata_props[:]
    model.doc_string = ""


def keep_signature(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Give the outputs the shapes of the original: inlining renames their free dimensions."""
    _replace(model.graph.output, list(original.graph.output))


def set_opset(model: onnx.ModelProto, domain: str, version: int | None) -> None:
    """Import a domain at a version, or no longer (None). The default domain stays first."""
    versions = {e.domain: e.version for e in model.opset_import if e.domain != domain}
    if version is not None:
        versions[domain] = version
    _replace(model.opset_import, [helper.make_opsetid(d, versions[d]) for d in sorted(versions)])


def opset_of(model: onnx.ModelProto) -> int:
    """Opset of the standard operators."""
    return next(int(e.version) for e in model.opset_import if e.domain in ("", "ai.onnx"))


def attach_functions(
    model: onnx.ModelProto,
    rewrites: Rewrites | None = None,
    *,
    compute: int = onnx.TensorProto.FLOAT,
) -> None:
    """Give every capsule operator its function body, and each distinct body a name of its own.

    The nodes take the name of their body: ``DynamicRouting``, ``DynamicRouting_2``, ... (``operator_names``).
    Attributes and input shapes that make the same body share it.

    Raises:
        ValueError: the shape of an input is not known.
    """
    shapes = shapes_of(model)
    names: dict[bytes, str] = {}
    counts: Counter[str] = Counter()
    for node in operator_nodes(model):
        operator = operator_of(node.op_type)
        inputs = [shapes.get(name) for name in node.input]
        if any(s is None for s in inputs):
            raise ValueError(f"no shape for an input of {operator} '{node.name}'")
        known: list[Shape] = [s for s in inputs if s is not None]
        body = function_body(
            operator,
            known,
            attributes_of(node),
            rewrites,
            opset=opset_of(model),
            compute=compute,
        )
        content = body.SerializeToString(deterministic=True)
        if content not in names:
            counts[operator] += 1
            names[content] = body.name = numbered(operator, counts[operator])
            model.functions.append(body)
        node.op_type, node.overload = names[content], ""
    if names:
        set_opset(model, DOMAIN, VERSION)


def detach_functions(model: onnx.ModelProto) -> None:
    """Take the bodies off the capsule operators, whose nodes get the operators' own names again."""
    _replace(model.functions, [f for f in model.functions if f.domain != DOMAIN])
    for node in operator_nodes(model):
        node.op_type, node.overload = operator_of(node.op_type), ""


def strip_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose capsule operators have no function bodies: it runs only where they are kernels."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    detach_functions(copy)
    return copy


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in standard operators only: function bodies inlined, constants folded.

    Raises:
        ValueError: a capsule operator has no function body.
    """
    from onnx import inliner

    copy = inliner.inline_local_functions(model)
    left = sorted({operator_of(n.op_type) for n in operator_nodes(copy)})
    if left:
        raise ValueError(f"no function body for {', '.join(left)}")
    set_opset(copy, DOMAIN, None)
    folded = simplify(inferred(copy))
    keep_signature(folded, model)
    remove_dead_nodes(folded)
    return folded


def check_operators(model: onnx.ModelProto) -> list[str]:
    """What is wrong with the capsule operators of a model: unknown types, missing attributes."""
    problems = []
    for node in operator_nodes(model):
        spec = OPERATORS.get(operator_of(node.op_type))
        if spec is None:
            problems.append(f"unknown operator {node.op_type}")
        elif set(attributes_of(node)) != set(spec.attributes):
            problems.append(
                f"{node.op_type} '{node.name}': attributes {sorted(attributes_of(node))}"
            )
        elif len(node.input) != len(spec.inputs) or not all(node.input):
            problems.append(f"{node.op_type} '{node.name}': {len(node.input)} inputs")
    return problems
