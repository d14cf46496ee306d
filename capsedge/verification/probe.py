"""The routing inside an ONNX file: a copy of the file that also outputs the values of every iteration.

The exporter names these values in the function bodies (``schema.marks``); inlining keeps the names and
appends a number. The file itself is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.runtime.backends.onnxruntime_backend import How, OnnxRuntimeBackend
from capsedge.runtime.reading.onnx_file import read_harmless
from capsedge.schema.marks import mark_of
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS, ROUTING_OPERATORS

# What a first pass, rewritten, is one of.
_PASSES = {o.first_pass: o.name for o in OPERATORS.values() if o.first_pass}


@dataclass
class Site:
    """One place in the graph where an operator routes.

    Attributes:
        operator: its type.
        values: iteration -> kind -> name of the graph value in the probe. Iteration 0 is the layer's input.
        uniform: whether it is a rewritten first pass.
    """

    operator: str
    values: dict[int, dict[str, str]] = field(default_factory=dict)
    uniform: bool = False

    def add(self, iteration: int, kind: str, name: str) -> None:
        """Record a value."""
        self.values.setdefault(iteration, {})[kind] = name

    def takes(self, operator: str, iteration: int, kind: str) -> bool:
        """Whether a value that comes next in the graph also belongs to this place."""
        return (
            operator == self.operator
            and not self.uniform
            and iteration >= max(self.values, default=0)
            and kind not in self.values.get(iteration, {})
        )


class Probe:
    """A copy of an ONNX file with the routing's values as outputs.

    Args:
        path: the file.
        library: the operator library that runs the nodes. Fused kernels show only their outputs; without a
            library the function bodies run and show the values of every iteration.

    Attributes:
        sites: the places of routing, in the graph's order.
    """

    def __init__(self, path: Path, library: Path | None = None) -> None:
        model = onnx.load_model_from_string(read_harmless(path)[0])
        self._library = library
        self.sites: list[Site] = []
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        open_site: Site | None = None
        for node in model.graph.node:
            if node.domain == DOMAIN and operator_of(node.op_type) in ROUTING_OPERATORS:
                open_site = None
                body = functions.get((node.domain, node.op_type, node.overload))
                if library is not None or body is None:
                    self.sites.append(_from_outside(node))
                else:
                    self.sites.append(_opened(model, node, body, len(self.sites)))
            else:
                for name in node.output:
                    found = mark_of(name)
                    if found is None:
                        continue
                    operator, iteration, kind = found
                    if open_site is None or not open_site.takes(operator, iteration, kind):
                        open_site = _site(operator)
                        self.sites.append(open_site)
                    open_site.add(iteration, kind, name)
        self._model = model
        self._names = list(
            dict.fromkeys(
                n for s in self.sites for kinds in s.values.values() for n in kinds.values()
            )
        )
        have = {o.name for o in model.graph.output}
        for name in self._names:
            if name not in have:
                model.graph.output.append(onnx.ValueInfoProto(name=name))

    def run(self, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The values by name."""
        nodes = tuple(n.op_type for n in self._model.graph.node if n.domain == DOMAIN)
        how = How(library=self._library, nodes=nodes)
        backend = OnnxRuntimeBackend(self._model.SerializeToString(), Path("the probe"), how)
        port = backend.inputs[0]
        return backend.run({port.name: images.astype(port.dtype)}, self._names)


def _site(operator: str) -> Site:
    """A place without values yet."""
    return Site(_PASSES.get(operator, operator), uniform=operator in _PASSES)


def _from_outside(node: onnx.NodeProto) -> Site:
    """The inputs and outputs of a node."""
    operator = operator_of(node.op_type)
    site = _site(operator)
    iterations = next((a.i for a in node.attribute if a.name == "iterations"), 1)
    site.add(0, "pose", node.input[0])
    site.add(iterations, "pose", node.output[0])
    if ROUTING_OPERATORS[operator].activations:
        site.add(0, "activation", node.input[1])
        site.add(iterations, "activation", node.output[1])
    return site


def _opened(
    model: onnx.ModelProto, node: onnx.NodeProto, body: onnx.FunctionProto, number: int
) -> Site:
    """Give a node its own function, whose marked values are outputs."""
    operator = operator_of(node.op_type)
    site = _site(operator)
    site.add(0, "pose", node.input[0])
    if ROUTING_OPERATORS[operator].activations:
        site.add(0, "activation", node.input[1])
    own = onnx.FunctionProto()
    own.CopyFrom(body)
    own.overload = node.overload = ""
    own.name = node.op_type = f"{operator}Probe{number}"
    for inner in body.node:
        for name in inner.output:
            found = mark_of(name)
            if found is not None:
                outside = f"probe{number}_{name}"
                own.output.append(name)
                node.output.append(outside)
                site.add(found.iteration, found.kind, outside)
    model.functions.append(own)
    return site
