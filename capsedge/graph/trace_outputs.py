"""Add the values of every routing iteration to a graph as outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from capsedge.graph import Rewrites
from capsedge.graph.cleanup import remove_unused_tensors
from capsedge.graph.functions import expand, inline
from capsedge.graph.ir import (
    attributes_of,
    copy_of,
    initializer,
    input_shapes,
    operator_nodes,
    replace_repeated,
    shapes_of,
)
from capsedge.runtime.session.routing_trace import TraceLayer
from capsedge.spec.operators import DOMAIN, ROUTING_OPERATORS, operator_of

# The plain procedures, which compute the values of all iterations.
_PLAIN = Rewrites.none()
_SHARED = ("strides", "matrix_pose", "epsilon")  # attributes of uniform passes and of attention


def without_uniform_passes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which uniform first passes are replaced by the equivalent attention with zero parents."""
    found = copy_of(model)
    shapes = shapes_of(found)
    nodes = []
    for node in found.graph.node:
        if node.domain == DOMAIN and operator_of(node.op_type) == "UniformRouting":
            nodes += _attention_without_parents(found, node, shapes[node.output[0]][1:])
        else:
            nodes.append(node)
    replace_repeated(found.graph.node, nodes)
    return found


def _attention_without_parents(
    model: onnx.ModelProto, node: onnx.NodeProto, sizes: tuple[int | None, ...]
) -> list[onnx.NodeProto]:
    """A uniform pass as nodes; ``sizes`` are those of its parents after the batch."""
    pose, weight, scale, bias = node.input
    name = f"{node.output[0]}_nothing"
    model.graph.initializer.append(initializer(f"{name}_sizes", np.array(sizes, np.int64)))
    zeros = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, *sizes])
    model.graph.value_info.append(zeros)
    given = {k: v for k, v in attributes_of(node).items() if k in _SHARED}
    return [
        helper.make_node("Shape", [pose], [f"{name}_batch"], start=0, end=1),
        helper.make_node("Concat", [f"{name}_batch", f"{name}_sizes"], [f"{name}_shape"], axis=0),
        helper.make_node("ConstantOfShape", [f"{name}_shape"], [name]),
        helper.make_node(
            "AttentionRouting", [pose, name, weight, scale, bias], list(node.output), name=node.name,
            domain=DOMAIN, agreement_scale=1.0, **given,
        ),
    ]  # fmt: skip


def with_trace(
    model: onnx.ModelProto,
    layers: Sequence[TraceLayer],
    calls: Sequence[str],
    sizes: dict[str, tuple[int, ...]],
) -> onnx.ModelProto:
    """A copy with the outputs of the layers, whose routing is in standard operators.

    Args:
        model: a graph of ``capsedge`` nodes without functions, all passes among them.
        layers: those to trace.
        calls: the layer of each routing node, in the graph's order.
        sizes: sizes of each output of the trace, after the batch.

    Raises:
        UnknownShapeError: an input of a node has no shape.
        ValueError: the graph has more or fewer routing nodes than calls.
    """
    shapes = shapes_of(model)
    parts: dict[str, list[str]] = {}
    nodes = [n for n in operator_nodes(model) if operator_of(n.op_type) in ROUTING_OPERATORS]
    for number, (node, name) in enumerate(zip(nodes, calls, strict=True), start=1):
        spec = ROUTING_OPERATORS[operator_of(node.op_type)]
        known, couplings = input_shapes(node, shapes), len(node.output) > len(spec.outputs)
        for kind in spec.traced:
            parts.setdefault(f"{name}/{kind}", []).append(f"trace_{number}_{kind}")
            node.output.append(f"trace_{number}_{kind}")
        expand(model, node, known, _PLAIN, number, couplings=couplings, traced=True)
    batch = model.graph.input[0].type.tensor_type.shape.dim[0]
    for layer in layers:
        for kind, output in layer.outputs.items():
            _add_outputs(
                model, layer, kind, parts[f"{layer.name}/{kind}"], output, sizes[output], batch
            )
    found = inline(model)
    remove_unused_tensors(found)
    return found


def _add_outputs(
    model: onnx.ModelProto,
    layer: TraceLayer,
    kind: str,
    parts: Sequence[str],
    output: str,
    sizes: tuple[int, ...],
    batch: onnx.TensorShapeProto.Dimension,
) -> None:
    """``[N·S, T, M, ...]`` of one node, or of one a pass, to the output ``[N, T, H', W', ...]``."""
    graph = model.graph

    def add(op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        graph.node.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def reshape(x: str, shape: Sequence[int], name: str) -> str:
        dims = [batch.dim_value or -1, *shape]
        graph.initializer.append(initializer(f"{name}_shape", np.array(dims, np.int64)))
        return add("Reshape", [x, f"{name}_shape"], name)

    whole = parts[0]
    if len(parts) > 1:
        whole = add("Concat", parts, f"{output}_passes", axis=1)
    positions = layer.grid[0] * layer.grid[1]
    rest = list(sizes[1 if layer.dense else 3 :])
    # Children come before parents in the output, and after them in the body.
    swapped = kind in ("couplings", "agreement", "distances")
    inner = rest[::-1] if swapped else rest
    x = reshape(whole, [positions, layer.iterations, *inner], f"{output}_places")
    order = list(range(3, 3 + len(rest)))
    x = add(
        "Transpose", [x], f"{output}_ordered", perm=[0, 2, 1, *(order[::-1] if swapped else order)]
    )
    reshape(x, sizes, output)
    dims = [batch.dim_param or batch.dim_value, *sizes]
    graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, dims))
