"""The damage that each layer and each routing iteration does to the decisions when it alone is in 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, inliner

from capsedge.calibration import collect
from capsedge.calibration.evaluate import Outcome
from capsedge.calibration.ort_cpu import activation_parameters
from capsedge.calibration.source import Source
from capsedge.calibration.table import Table
from capsedge.calibration.units import title
from capsedge.datasets import ImageSet
from capsedge.graph.proto import copy_of, initializer, operator_nodes
from capsedge.schema.marks import Mark, mark_of
from capsedge.schema.names import operator_of
from capsedge.schema.operators import ROUTING_OPERATORS


@dataclass(frozen=True)
class Damage:
    """One layer or routing iteration alone in 8 bits.

    Attributes:
        name: the layer; for an iteration, also its number: its couplings and poses are in 8 bits.
        kind: ``conv``, ``routing``, ``linear`` or ``iteration``.
        saved: bytes by which the file becomes smaller.
        outcome: comparison with FP32.
    """

    name: str
    kind: str
    saved: int
    outcome: Outcome

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "saved_bytes": self.saved,
            **self.outcome.to_dict(),
        }


def sensitivity(
    source: Source,
    table: Table,
    data: ImageSet,
    calibration: ImageSet,
    target: str = "ort-cpu",
    done: Callable[[str], None] | None = None,
) -> list[Damage]:
    """The damage of every layer and routing iteration alone, largest first, by the root mean squared error
    of the scores, which ranks even where no decision changes."""
    found = []
    for unit in source.quantizable(target):
        model, _ = source.emit({unit.name: "int8"}, table, target)
        outcome = source.outcome(model, data)
        found.append(Damage(unit.name, unit.kind, len(source.content) - model.ByteSize(), outcome))
        if done is not None:
            done(unit.name)
    for name, model in _iterations(source, calibration):
        found.append(Damage(name, "iteration", 0, source.outcome(model, data)))
        if done is not None:
            done(name)
    return sorted(found, key=lambda d: -d.outcome.error)


def _iterations(source: Source, calibration: ImageSet) -> list[tuple[str, onnx.ModelProto]]:
    """One model per iteration of every routing node, with the results of the iteration rounded to 8 bits."""
    inlined = inliner.inline_local_functions(source.model)
    sites = _sites(source.model, inlined)
    tensors = [t for _, names in sites for t in names]
    limits = collect.magnitudes(inlined, tensors, calibration)
    return [(name, _rounded(inlined, names, limits)) for name, names in sites]


def _sites(model: onnx.ModelProto, inlined: onnx.ModelProto) -> list[tuple[str, list[str]]]:
    """The marked tensors of an inlined model by layer and iteration, in order."""
    layers = [
        title(n.input[ROUTING_OPERATORS[operator_of(n.op_type)].weight])
        for n in operator_nodes(model)
        if operator_of(n.op_type) in ROUTING_OPERATORS
    ]
    sites: list[tuple[str, list[str]]] = []
    taken: set[Mark] = set()
    place, passes = -1, dict.fromkeys(layers, 0)
    for node in inlined.graph.node:
        for name in node.output:
            mark = mark_of(name)
            if mark is None:
                continue
            fresh = not taken or mark in taken or mark.operator not in {t.operator for t in taken}
            if fresh:
                place, taken = place + 1, set()
                layer = layers[place] if place < len(layers) else f"routing {place + 1}"
                passes[layer] = passes.get(layer, 0) + 1
            taken.add(mark)
            # If a node is a single pass, the passes are the iterations of the layer.
            iterates = ROUTING_OPERATORS[mark.operator].iterates
            title_ = f"{layer}, iteration {mark.iteration if iterates else passes[layer]}"
            if sites and sites[-1][0] == title_:
                sites[-1][1].append(name)
            else:
                sites.append((title_, [name]))
    return sites


def _rounded(
    model: onnx.ModelProto, tensors: list[str], limits: dict[str, tuple[float, float]]
) -> onnx.ModelProto:
    """A copy in which some tensors are rounded to uint8."""
    copy = copy_of(model)
    nodes = list(copy.graph.node)
    del copy.graph.node[:]
    for node in nodes:
        after = []
        for k, name in enumerate(node.output):
            if name in tensors:
                scale, zero = activation_parameters(*limits[name])
                copy.graph.initializer.append(initializer(f"{name}_scale", np.float32(scale)))
                copy.graph.initializer.append(initializer(f"{name}_zero", np.uint8(zero)))
                parameters = [f"{name}_scale", f"{name}_zero"]
                node.output[k] = f"{name}_exact"
                after += [
                    helper.make_node(
                        "QuantizeLinear", [f"{name}_exact", *parameters], [f"{name}_q"]
                    ),
                    helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [name]),
                ]
        copy.graph.node.extend([node, *after])
    del copy.graph.value_info[:]
    return copy
