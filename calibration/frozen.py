"""Frozen couplings: routing with the couplings that it has on average. An approximation, named as one.

With constant couplings nothing depends on agreement any more: the loop becomes one matrix product. For
dynamic routing that is the same operator with one iteration, whose log priors are the logarithms of the
mean couplings; for attention routing it is a first pass, whose equal couplings are weighted into the
weights.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from capsedge.calibration.collect import watch
from capsedge.calibration.units import ROUTING, title
from capsedge.datasets import ImageSet
from capsedge.errors import UnsupportedModelError
from capsedge.graph import proto
from capsedge.graph.bodies import function_body
from capsedge.graph.first_pass import make_uniform
from capsedge.graph.operators import attributes_of
from capsedge.schema.names import DOMAIN, operator_of

SMALLEST = 1e-30  # couplings below have a logarithm all the same
_FREEZABLE = {"DynamicRouting", "AttentionRouting"}


def freeze(model: onnx.ModelProto, data: ImageSet) -> dict[str, dict[str, float]]:
    """Freeze every routing node of a model, in place.

    Args:
        model: as ``export`` writes it (``ops`` auto).
        data: images whose couplings are averaged.

    Returns:
        For each layer: ``deviation``, the mean standard deviation of its couplings over the images,
        and ``uniform``, what equal couplings would be.

    Raises:
        UnsupportedModelError: there is no routing to freeze, or it is EM routing: its M-step weighs
            votes by the children's activations and their variances, so that no matrix product remains.
    """
    proto.detach_functions(model)
    nodes = proto.operator_nodes(model)
    if any(n.op_type == "EMRouting" for n in nodes):
        raise UnsupportedModelError(
            "The couplings of EM routing cannot be frozen.",
            "With constant couplings its M-step still divides by the children's activations and takes "
            "variances: no matrix product remains.",
            "Export it with fewer iterations: --iters 1.",
        )
    routed = [n for n in nodes if n.op_type in _FREEZABLE]
    if not routed:
        raise UnsupportedModelError(
            "The file has no routing whose couplings could be frozen.",
            "It was exported with --ops portable, or routes with one pass only.",
            "Export it with --ops auto and two iterations or more.",
        )
    couplings = _mean_couplings(model, routed, data)
    measured = {}
    for node in routed:
        mean, deviation = couplings[node.output[0]]
        weight = node.input[ROUTING[node.op_type]]
        measured[title(weight)] = {"deviation": deviation, "uniform": 1 / mean.shape[-1]}
        if node.op_type == "DynamicRouting":
            _freeze_dynamic(model, node, mean)
        else:
            _freeze_attention(model, node, mean)
    proto.remove_dead_nodes(model)
    proto.attach_functions(model)
    onnx.checker.check_model(model, full_check=True)
    return measured


def _mean_couplings(
    model: onnx.ModelProto, routed: list[onnx.NodeProto], data: ImageSet
) -> dict[str, tuple[NDArray[np.float64], float]]:
    """Couplings ``[I, J]`` of each node, averaged over images (and positions), and their deviation."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    proto.attach_functions(copy)
    shapes = proto.shapes_of(model)
    names = {}
    outputs = {n.output[0] for n in routed}
    number = 0
    for node in copy.graph.node:
        if node.domain != DOMAIN or node.output[0] not in outputs:
            continue
        number += 1
        known = [shapes[i] for i in node.input]
        body = function_body(
            operator_of(node.op_type),
            known,
            attributes_of(node),
            opset=proto.opset_of(model),
            couplings=True,
        )
        node.op_type = body.name = f"{body.name}Couplings{number}"
        copy.functions.append(body)
        names[node.output[0]] = f"couplings{number}"
        node.output.append(f"couplings{number}")
    sums: dict[str, NDArray[np.float64]] = {}
    squares: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(names, 0)
    # Portable: the kernels never hold couplings.
    for _, found in watch(copy, [*names.values()], data, ops="portable"):
        for key, name in names.items():
            values = found[name].astype(np.float64)
            flat = values.reshape(-1, *values.shape[-2:])
            sums[key] = sums.get(key, 0) + flat.sum(0)
            squares[key] = squares.get(key, 0) + np.square(flat).sum(0)
            counts[key] += len(flat)
    result = {}
    for key in names:
        mean = sums[key] / counts[key]
        variance = np.maximum(squares[key] / counts[key] - np.square(mean), 0)
        result[key] = mean, float(np.sqrt(variance).mean())
    return result


def _freeze_dynamic(
    model: onnx.ModelProto, node: onnx.NodeProto, mean: NDArray[np.float64]
) -> None:
    """One iteration with log priors whose softmax is the mean coupling."""
    attributes = attributes_of(node)
    if attributes["leaky"]:
        rest = np.maximum(1 - mean.sum(-1, keepdims=True), SMALLEST)
        mean = mean / rest
    name = f"{node.output[0]}_frozen"
    value = np.log(np.maximum(mean, SMALLEST)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    node.input[2] = name
    for attribute in node.attribute:
        if attribute.name == "iterations":
            attribute.i = 1


def _freeze_attention(
    model: onnx.ModelProto, node: onnx.NodeProto, mean: NDArray[np.float64]
) -> None:
    """A uniform pass whose weights hold ``M`` times the mean couplings."""
    weight = numpy_helper.to_array(
        next(t for t in model.graph.initializer if t.name == node.input[2])
    )
    rows, columns, types, parents = weight.shape[:4]
    factors = parents * mean.reshape(rows, columns, types, parents, 1, 1)
    name = f"{node.input[2]}_frozen_{node.output[0]}"
    frozen = (weight * factors).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(frozen, name))
    node.input[2] = name
    make_uniform(node)
