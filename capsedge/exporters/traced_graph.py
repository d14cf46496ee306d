"""The trace of a network of the user's own: of the capsule operators that its graph has."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.checks import session_of
from capsedge.exporters.child_maps import child_map
from capsedge.exporters.routing_calls import RoutingCall
from capsedge.exporters.traced import Traced, checked, layers_of
from capsedge.graph.functions import attach_functions
from capsedge.graph.proto import attributes_of, copy_of, operator_nodes
from capsedge.graph.recognize.report import Recognition
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.trace import without_uniform_passes
from capsedge.runtime.routing_trace import TraceLayer
from capsedge.schema.names import operator_of
from capsedge.schema.operators import GIVEN, ROUTING_OPERATORS


class TracedGraph(Traced):
    """A module, and the values of every iteration of the capsule operators in its graph.

    The operators' inputs are those of the graph in ONNX Runtime; what each iteration makes of them is the
    operators' definition in PyTorch.

    Args:
        module: returns a tuple.
        layers: those of its graph.
        calls: the layer of each routing node of the graph, in order.
        inputs: of these nodes.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[TraceLayer], calls: Sequence[str], inputs: _Inputs
    ) -> None:
        super().__init__(module, layers, calls)
        self.inputs = inputs

    def _run(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], list[RoutingCall]]:
        outputs = self.module(*inputs)
        return outputs, self.inputs.calls(inputs)


class _Inputs:
    """What the routing nodes of a graph read.

    Args:
        model: a graph of ``capsedge`` nodes without functions.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = [copy.deepcopy(node) for node in _routing_nodes(model)]  # the graph changes
        graph = model.graph
        self.constants = {
            t.name: numpy_helper.to_array(t)
            for t in graph.initializer
            if any(t.name in node.input for node in self.nodes)
        }
        self.given = [i.name for i in graph.input]
        read = dict.fromkeys(i for node in self.nodes for i in node.input)
        self.read = [n for n in read if n not in self.constants and n not in self.given]
        runnable = copy_of(model)
        shown = {o.name for o in graph.output}
        runnable.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for name in self.read
            if name not in shown
        )
        attach_functions(runnable, Rewrites.none())
        self.session = session_of(runnable)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Inputs:
        return self  # nothing of it changes

    def feeds(self, inputs: Sequence[Tensor]) -> dict[str, np.ndarray]:
        """The inputs of the graph by name."""
        arrays = [(x.float() if x.is_floating_point() else x).numpy() for x in inputs]
        return dict(zip(self.given, arrays, strict=True))

    def calls(self, inputs: Sequence[Tensor]) -> list[RoutingCall]:
        """A call of each node's operator in PyTorch, in the precision of the inputs."""
        exact = any(x.dtype == torch.float64 for x in inputs)
        feeds = self.feeds(inputs)
        found = dict(zip(self.read, self.session.run(self.read, feeds), strict=True))
        values = {**self.constants, **feeds, **found}
        return [_call(node, values, exact) for node in self.nodes]


def _routing_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in operator_nodes(model) if operator_of(n.op_type) in ROUTING_OPERATORS]


def _call(node: onnx.NodeProto, values: Mapping[str, np.ndarray], exact: bool) -> RoutingCall:
    operator = operator_of(node.op_type)
    spec = ROUTING_OPERATORS[operator]
    function = getattr(torch.ops.capsedge, spec.torch).default
    kinds = {a.name: str(a.type) for a in function._schema.arguments}
    tensors = [torch.from_numpy(np.array(values[name])) for name in node.input]
    left_out = [None] * (len(spec.inputs) - len(tensors))
    attributes = spec.complete(attributes_of(node))
    given = [attributes[name] for name in spec.attribute_names]
    flags = [
        bool(value) if kinds[name] == "bool" else value
        for name, value in zip(spec.attribute_names, given, strict=True)
    ]
    args = (*(t.double() if exact else t for t in tensors), *left_out, *flags)
    return RoutingCall(operator, args, tuple(function(*args)))


def traced_graph(
    module: nn.Module, model: onnx.ModelProto, example: Sequence[Tensor], left: Recognition
) -> tuple[Traced, onnx.ModelProto]:
    """What a trace of a module's graph has.

    Args:
        module: returns the outputs of the file.
        model: its graph, of ``capsedge`` nodes without functions.
        example: inputs of the module.
        left: what was recognized in it, for the reason where nothing was.

    Returns:
        The trace, and the graph that it is written into.

    Raises:
        UnsupportedModelError: no routing in the graph has become a capsule operator.
        UsageError: the values of one image take too much memory.
    """
    graph = without_uniform_passes(model)
    if not _routing_nodes(graph):
        raise _without_operators(left)
    inputs = _Inputs(graph)
    with torch.no_grad():
        calls = inputs.calls(example)
    names = _names(graph, inputs.nodes, calls, len(example[0]))
    found = layers_of(names, calls, len(example[0]))
    feeds = inputs.feeds(example)
    nodes = [inputs.nodes[names.index(layer.name)] for layer in found]
    layers = [_located(*each, graph, feeds) for each in zip(found, nodes, strict=True)]
    return checked(TracedGraph(module, layers, names, inputs), example), graph


def _without_operators(left: Recognition) -> UnsupportedModelError:
    reasons = [f"{each.place}: {each.reason}" for each in left.left]
    return UnsupportedModelError(
        "The routing of this network cannot be traced.",
        "None of it has become a capsule operator, whose iterations are known"
        + (f"; left as it is: {reasons[0]}." if reasons else "."),
        "Leave 'trace' out of --with, or write the routing with capsedge.ops.",
        details=reasons[1:],
    )


def _located(
    layer: TraceLayer,
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
) -> TraceLayer:
    """A layer whose parents see all children, with the map that these lie on, where that is found."""
    known = layer.child_grid is not None and min(layer.child_grid) > 1
    if known or not layer.dense or ROUTING_OPERATORS[operator_of(node.op_type)].layout is GIVEN:
        return layer
    found = child_map(model, node.input[0], feeds)
    if found is None:
        return layer
    return replace(
        layer,
        child_grid=found.grid,
        kernel=found.grid,
        strides=(1, 1),
        types_first=found.types_first,
    )


def _names(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    calls: Sequence[RoutingCall],
    batch: int,
) -> list[str]:
    """The layer of each routing node: attention passes with one weight and one map are one layer.

    A layer is named after the parameter's module where the graph still has the parameter, otherwise
    ``routing1``, ``routing2``, and ``classes`` where the last has its parents on no map.
    """
    parameters = {t.name for t in model.graph.initializer}
    keys = [_layer_key(number, call) for number, call in enumerate(calls)]
    dense = calls[-1].outputs[0].shape[:-2].numel() == batch
    names: dict[object, str] = {}
    for key, node, call in zip(keys, nodes, calls, strict=True):
        if key in names:
            continue
        stored = node.input[ROUTING_OPERATORS[call.operator].weight]
        known = call.weight is not None and stored in parameters
        other = "classes" if dense and key == keys[-1] else f"routing{len(names) + 1}"
        name = (_module_of(stored) if known else "") or other
        names[key] = name if name not in names.values() else f"{name}.{len(names) + 1}"
    return [names[key] for key in keys]


def _layer_key(number: int, call: RoutingCall) -> object:
    """What the passes of a layer have in common."""
    if not ROUTING_OPERATORS[call.operator].first_pass or call.weight is None:
        return number
    return call.outputs[0].shape, _content(call.weight)


def _content(weight: Tensor) -> tuple[object, ...]:
    values = weight.contiguous().numpy()
    return (tuple(values.shape), hashlib.sha256(values.tobytes()).digest())


def _module_of(parameter: str) -> str:
    """``capsules.0`` of ``module.module.capsules.0.weight``; empty for a name of another form."""
    parts = parameter.split(".")
    while parts and parts[0] == "module":
        parts = parts[1:]
    return (
        ".".join(parts[:-1]) if all(part.isidentifier() or part.isdigit() for part in parts) else ""
    )
