"""Freeze routing: replace the couplings by their averages (``export --freeze-couplings``).

This is an approximation, and is labelled as one. With constant couplings, nothing depends on agreement
any longer, and the loop becomes one matrix product. For dynamic routing that is the same operator with one
iteration, whose log priors are the logarithms of the mean couplings; for attention routing it is a single
uniform pass, whose weights are multiplied by the mean couplings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from capsedge.calibration.collect import watch
from capsedge.calibration.float_model import FloatModel, rounded_outcome
from capsedge.calibration.quantizable_layers import title
from capsedge.calibration.quantize import split
from capsedge.datasets import ImageSet
from capsedge.errors import UnsupportedModelError
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.exporters.export_report import ExportReport
from capsedge.graph.bodies import function_body
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.functions import attach_functions
from capsedge.graph.ir import (
    attributes_of,
    copy_of,
    detach_functions,
    initializer,
    input_shapes,
    operator_counts,
    operator_nodes,
    opset_of,
    shapes_of,
)
from capsedge.graph.rewrites import make_uniform
from capsedge.graph.write_shapes import write_shapes
from capsedge.runtime.files.writing import check_writable, temporary_folder, write_bytes
from capsedge.spec.operators import DOMAIN, ROUTING_OPERATORS, operator_of

# --- Measuring and freezing couplings ---

SMALLEST = 1e-30  # smaller couplings are raised to this, so that they have a logarithm


def freeze(model: onnx.ModelProto, data: ImageSet) -> dict[str, dict[str, float]]:
    """Freeze every routing node of a model, in place.

    Args:
        model: a model as ``export`` writes it (``ops`` auto).
        data: images to average the couplings over.

    Returns:
        For each layer: ``deviation``, the mean standard deviation of its couplings over the images,
        and ``uniform``, the value of equal couplings.

    Raises:
        UnsupportedModelError: there is no routing to freeze, or it is EM routing: its M-step weighs
            votes by the children's activations and the votes' variances, so it does not reduce to a matrix
            product.
    """
    detach_functions(model)
    routed = [n for n in operator_nodes(model) if _has_couplings(n)]
    if any(not ROUTING_OPERATORS[n.op_type].freezable for n in routed):
        raise UnsupportedModelError(
            "The couplings of EM routing cannot be frozen.",
            "Even with constant couplings, its M-step divides by the children's activations and "
            "computes variances, so it does not reduce to a matrix product.",
            "Export it with fewer iterations: --iters 1.",
        )
    if any(ROUTING_OPERATORS[n.op_type].per_image(len(n.input)) for n in routed):
        raise UnsupportedModelError(
            "Couplings cannot be frozen where each image has its own mask or prior.",
            "Their average would ignore which children an image has.",
            "Export it without --freeze-couplings.",
        )
    if not routed:
        raise UnsupportedModelError(
            "The file has no routing with couplings that can be frozen.",
            "It was exported with --ops portable, or it routes in a single pass.",
            "Export it with --ops auto and at least two iterations.",
        )
    couplings = _mean_couplings(model, routed, data)
    measured = {}
    for node in routed:
        mean, deviation = couplings[node.output[0]]
        weight = node.input[ROUTING_OPERATORS[node.op_type].weight]
        over_children = attributes_of(node).get("over_children", 0)
        uniform = 1 / mean.shape[-2 if over_children else -1]
        measured[title(weight)] = {"deviation": deviation, "uniform": uniform}
        if ROUTING_OPERATORS[node.op_type].first_pass:
            _freeze_in_weights(model, node, mean)
        else:
            _freeze_in_priors(model, node, mean)
    remove_dead_nodes(model)
    attach_functions(model)
    onnx.checker.check_model(model, full_check=True)
    return measured


def _has_couplings(node: onnx.NodeProto) -> bool:
    spec = ROUTING_OPERATORS.get(node.op_type)
    return spec is not None and spec.couplings and not spec.quantizes


def _mean_couplings(
    model: onnx.ModelProto, routed: list[onnx.NodeProto], data: ImageSet
) -> dict[str, tuple[NDArray[np.float64], float]]:
    """Couplings ``[I, J]`` of each node, averaged over images (and positions), and their deviation."""
    copy = copy_of(model)
    attach_functions(copy)
    shapes = shapes_of(model)
    names = {}
    outputs = {n.output[0] for n in routed}
    number = 0
    for node in copy.graph.node:
        if node.domain != DOMAIN or node.output[0] not in outputs:
            continue
        number += 1
        body = function_body(
            operator_of(node.op_type),
            input_shapes(node, shapes),
            attributes_of(node),
            opset=opset_of(model),
            couplings=True,
        )
        node.op_type = body.name = f"{body.name}Couplings{number}"
        copy.functions.append(body)
        names[node.output[0]] = f"couplings{number}"
        node.output.append(f"couplings{number}")
    sums: dict[str, NDArray[np.float64]] = {}
    squares: dict[str, NDArray[np.float64]] = {}
    counts = dict.fromkeys(names, 0)
    # Portable, because the kernels never store couplings.
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


def _freeze_in_priors(
    model: onnx.ModelProto, node: onnx.NodeProto, mean: NDArray[np.float64]
) -> None:
    """One iteration with log priors whose softmax is the mean coupling."""
    attributes = attributes_of(node)
    if attributes["leaky"]:
        rest = np.maximum(1 - mean.sum(-1, keepdims=True), SMALLEST)
        mean = mean / rest
    name = f"{node.output[0]}_frozen"
    value = np.log(np.maximum(mean, SMALLEST)).astype(np.float32)
    model.graph.initializer.append(initializer(name, value))
    node.input[ROUTING_OPERATORS[node.op_type].input_names.index("log_prior")] = name
    for attribute in node.attribute:
        if attribute.name == "iterations":
            attribute.i = 1


def _freeze_in_weights(
    model: onnx.ModelProto, node: onnx.NodeProto, mean: NDArray[np.float64]
) -> None:
    """A uniform pass whose weights hold ``M`` times the mean couplings."""
    index = ROUTING_OPERATORS[node.op_type].weight
    weight = numpy_helper.to_array(
        next(t for t in model.graph.initializer if t.name == node.input[index])
    )
    rows, columns, types, parents = weight.shape[:4]
    factors = parents * mean.reshape(rows, columns, types, parents, 1, 1)
    name = f"{node.input[index]}_frozen_{node.output[0]}"
    frozen = (weight * factors).astype(np.float32)
    model.graph.initializer.append(initializer(name, frozen))
    node.input[index] = name
    make_uniform(node)


# --- The frozen file, and the accuracy that freezing costs ---


@dataclass(frozen=True)
class FrozenExport:
    """A file with frozen couplings.

    Attributes:
        report: report on the file; its comparisons are those of the routing file that it was made from.
        measured: measurements, as in the file's metadata: images, variation of couplings by layer, agreement.
        warnings: warnings about the images.
    """

    report: ExportReport
    measured: dict[str, Any]
    warnings: tuple[str, ...]


def export_frozen(
    model: nn.Module,
    path: Path,
    calib_data: Path | ImageSet,
    calib_images: int = 512,
    options: ExportOptions = ExportOptions(),
    **others: Any,
) -> FrozenExport:
    """Export a file with couplings frozen to their mean, and measure what that costs.

    If this fails, no unfrozen file is left under the name of the frozen one.

    Args:
        model, path, options, others: as for `export`, with ``ops`` auto.
        calib_data: images to average the couplings over; the cost is measured on other images.
        calib_images: number of images drawn from them.

    Raises:
        as `export`; also UsageError if the images are wrong, and UnsupportedModelError if the couplings
        cannot be frozen.
    """
    check_writable(path)
    with temporary_folder() as folder:
        routed = folder / path.name
        report = export(model, routed, options, **others)
        source = FloatModel(routed)
        splits = split(source, calib_data, None, calib_images)
        frozen = copy_of(source.model)
        layers = freeze(frozen, splits.calibration)
        outcome = source.outcome(frozen, splits.evaluation)
    measured = {
        "averaged_images": len(splits.calibration),
        "data_sha256": splits.calibration.digest(),
        "measured_on": splits.evaluation.described,
        "layers": layers,
        **rounded_outcome(outcome),
    }
    describe_frozen(frozen, source, measured)
    write_shapes(frozen)
    data = frozen.SerializeToString()
    write_bytes(path, data)
    report = dataclasses.replace(
        report,
        path=path,
        size=len(data),
        operators=operator_counts(frozen),
        functions=len(frozen.functions),
    )
    return FrozenExport(report, measured, splits.warnings)


def describe_frozen(
    frozen: onnx.ModelProto, source: FloatModel, measured: Mapping[str, Any]
) -> None:
    """State in a file's metadata that its couplings are frozen, and from what data."""
    assert source.metadata is not None  # it was exported by this package
    origin = source.metadata.origin
    described = dataclasses.replace(
        source.metadata,
        calibration={"frozen_couplings": measured},
        origin=origin and origin.changed("couplings frozen to their mean"),
    )
    onnx.helper.set_model_props(frozen, described.to_properties())
