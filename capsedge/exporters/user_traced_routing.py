"""Trace the routing of a user's own network, by the capsule operators of its graph."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_node
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.parity import session_of
from capsedge.exporters.traced_routing import Traced, checked_trace, layers_of
from capsedge.graph import Rewrites
from capsedge.graph.cleanup import remove_unused_tensors
from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion import FusionReport
from capsedge.graph.ir import (
    Graph,
    UnknownShapeError,
    attributes_of,
    copy_of,
    operator_nodes,
    reads,
    shapes_of,
)
from capsedge.graph.ir import replace_repeated as replace_fields
from capsedge.graph.trace_outputs import without_uniform_passes
from capsedge.models.ops.registration import RoutingCall
from capsedge.runtime.session.routing_trace import TraceLayer
from capsedge.spec.operators import DOMAIN, ROUTING_OPERATORS, VOTES_AS_INPUT, WINDOWS, operator_of

# --- Positions of a node's children, found by perturbing the preceding maps ---

_MAX_POSITIONS = 4096
_TURNS = 3  # a child that is zero for one value at its position may not be for another

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ChildMap:
    """The map of a user's network on which the children of a routing operator lie.

    Attributes:
        grid: its rows and columns.
        types_first: whether child ``i`` is ``(c * rows + y) * columns + x`` instead of
            ``(y * columns + x) * types + c``.
    """

    grid: tuple[int, int]
    types_first: bool


def child_map(
    model: onnx.ModelProto, tensor: str, inputs: Mapping[str, NDArray[Any]]
) -> ChildMap | None:
    """The map on which the capsules of a tensor lie.

    The maps behind the tensor (outputs of convolutions or of routing) are perturbed one position at a time;
    a capsule that changes with one position only belongs there.

    Args:
        model: a graph of ``capsedge`` nodes without functions.
        tensor: capsules ``[N, ..., P]``, the axes between counted as one.
        inputs: inputs of the graph, an example.

    Returns:
        None if there is no such map, a capsule depends on several positions, or the order is another.
    """
    part = _RoutingPart(model, tensor)
    if part.grid is None or not 1 < np.prod(part.grid) <= _MAX_POSITIONS:
        return None
    try:
        changed = part.changes_by_position(inputs)
    except (CapsedgeError, UnknownShapeError):  # the part does not run on its own
        return None
    if (changed.sum(axis=0) != 1).any():
        return None
    places = changed.argmax(axis=0)
    types = len(places) // len(changed)
    for types_first, order in (
        (False, np.repeat(np.arange(len(changed)), types)),
        (True, np.tile(np.arange(len(changed)), types)),
    ):
        if np.array_equal(places, order):
            return ChildMap(part.grid, types_first)
    return None


class _RoutingPart:
    """The nodes between maps and a tensor.

    Attributes:
        grid: rows and columns of all maps; None if they differ or there are none.
        maps: the sizes of each after the batch, and its axes of rows and columns, by name.
    """

    def __init__(self, model: onnx.ModelProto, tensor: str) -> None:
        self.model, self.tensor = model, tensor
        shapes = shapes_of(model)
        graph = Graph.of(model.graph)
        self.maps: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {}

        def read_inside(node: onnx.NodeProto) -> list[str]:
            """What a node reads except maps, which are noted."""
            names = reads(node)
            for name in names:
                producer = graph.producer(name)  # None for an input of the graph, or a constant
                found = None if producer is None else _map_of(producer, name, shapes)
                if found is not None:
                    self.maps[name] = found
            return [name for name in names if name not in self.maps]

        self.nodes = [graph.nodes[k] for k in graph.before([tensor], read_inside)]
        grids = {tuple(sizes[a - 1] for a in axes) for sizes, axes in self.maps.values()}
        self.grid: tuple[int, int] | None = None
        if len(grids) == 1:
            rows, columns = grids.pop()
            self.grid = (rows, columns)

    def changes_by_position(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Whether changing a position changes a capsule: ``[positions, capsules]``."""
        assert self.grid is not None
        model = copy_of(self.model)
        replace_fields(model.graph.node, self.nodes)
        ports = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, *sizes])
            for name, (sizes, _) in self.maps.items()
        ]
        model.graph.input.extend(ports)
        result = onnx.helper.make_tensor_value_info(self.tensor, onnx.TensorProto.FLOAT, None)
        replace_fields(model.graph.output, [result])
        attach_functions(model, Rewrites.none())
        remove_unused_tensors(model)
        session = session_of(model)
        batch = len(next(iter(inputs.values())))
        found = np.zeros((int(np.prod(self.grid)), 0), bool)
        for seed in range(_TURNS):
            rng = np.random.default_rng(seed)
            values = {
                name: rng.standard_normal((2, *sizes), np.float32)
                for name, (sizes, _) in self.maps.items()
            }
            turn = np.stack(
                [
                    self._capsules(session, inputs, self._at(values, position, batch))
                    for position in [None, *np.ndindex(self.grid)]
                ]
            )
            changed = (turn[1:] != turn[0]).any(axis=-1)
            found = found | changed if found.size else changed
        return found

    def _at(
        self, values: Mapping[str, Floats], position: tuple[int, ...] | None, batch: int
    ) -> dict[str, Floats]:
        """The maps of one image, with the second values at a position."""
        given = {}
        for name, (one, other) in values.items():
            whole = one.copy()
            if position is not None:
                at: list[Any] = [slice(None)] * whole.ndim
                for axis, index in zip(self.maps[name][1], position, strict=True):
                    at[axis - 1] = index
                whole[tuple(at)] = other[tuple(at)]
            given[name] = np.repeat(whole[None], batch, axis=0)
        return given

    def _capsules(
        self, session: Any, inputs: Mapping[str, NDArray[Any]], maps: Mapping[str, Floats]
    ) -> Floats:
        """``[capsules, P]`` of the first image."""
        (found,) = session.run([self.tensor], {**inputs, **maps})
        return np.asarray(found[0].reshape(-1, found.shape[-1]), np.float32)


def _map_of(
    node: onnx.NodeProto, name: str, shapes: Mapping[str, Sequence[int | None]]
) -> tuple[tuple[int, ...], tuple[int, int]] | None:
    """Sizes of a map after the batch, and its axes of rows and columns; None if the tensor is not a map."""
    if node.op_type == "Conv" and not node.domain and len(shapes.get(name, ())) == 4:
        axes = (2, 3)
    elif _routes_to_a_map(node):
        axes = (1, 2)
    else:
        return None
    sizes = [size or 0 for size in shapes.get(name, ())[1:]]
    return (tuple(sizes), axes) if len(sizes) >= max(axes) and all(sizes) else None


def _routes_to_a_map(node: onnx.NodeProto) -> bool:
    spec = ROUTING_OPERATORS.get(operator_of(node.op_type))
    return node.domain == DOMAIN and spec is not None and spec.layout is WINDOWS


# --- The trace ---


class TracedGraph(Traced):
    """A module, and the values of every iteration of the capsule operators in its graph.

    The operators' inputs are those of the graph in ONNX Runtime; each iteration is computed from them by the
    operators' definition in PyTorch.

    Args:
        module: returns a tuple.
        layers: those of its graph.
        calls: the layer of each routing node of the graph, in order.
        inputs: inputs of these nodes.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[TraceLayer],
        calls: Sequence[str],
        inputs: _NodeInputs,
    ) -> None:
        super().__init__(module, layers, calls)
        self.inputs = inputs

    def _run(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], list[RoutingCall]]:
        outputs = self.module(*inputs)
        return outputs, self.inputs.calls(inputs)


class _NodeInputs:
    """The inputs of a graph's routing nodes.

    Args:
        model: a graph of ``capsedge`` nodes without functions.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = [copy.deepcopy(node) for node in _routing_nodes(model)]  # the graph changes
        routing = Graph(self.nodes, (), model.graph.initializer)
        stored = [name for name in routing.initializers if name in routing.used]
        self.constants = {name: routing.array(name) for name in stored}
        self.graph_inputs = [i.name for i in model.graph.input]
        known = self.constants.keys() | self.graph_inputs
        self.read = [name for name in routing.used if name not in known]
        runnable = copy_of(model)
        shown = {o.name for o in model.graph.output}
        runnable.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for name in self.read
            if name not in shown
        )
        attach_functions(runnable, Rewrites.none())
        self.session = session_of(runnable)

    def __deepcopy__(self, memo: dict[int, Any]) -> _NodeInputs:
        return self  # it does not change

    def feeds(self, inputs: Sequence[Tensor]) -> dict[str, np.ndarray]:
        """The inputs of the graph by name."""
        arrays = [(x.float() if x.is_floating_point() else x).numpy() for x in inputs]
        return dict(zip(self.graph_inputs, arrays, strict=True))

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
    module: nn.Module, model: onnx.ModelProto, example: Sequence[Tensor], not_fused: FusionReport
) -> tuple[Traced, onnx.ModelProto]:
    """The contents of a trace of a module's graph.

    Args:
        module: returns the outputs of the file.
        model: its graph, of ``capsedge`` nodes without functions.
        example: inputs of the module.
        not_fused: the fusion report, which gives the reasons if nothing was fused.

    Returns:
        The trace, and the graph that it is written into.

    Raises:
        UnsupportedModelError: no routing in the graph has become a capsule operator.
        UsageError: the values of one image take too much memory.
    """
    graph = without_uniform_passes(model)
    if not _routing_nodes(graph):
        raise _without_operators(not_fused)
    inputs = _NodeInputs(graph)
    with torch.no_grad():
        calls = inputs.calls(example)
    names = _names(graph, inputs.nodes, calls, len(example[0]))
    found = layers_of(names, calls, len(example[0]))
    feeds = inputs.feeds(example)
    nodes = [inputs.nodes[names.index(layer.name)] for layer in found]
    layers = [_located(*each, graph, feeds) for each in zip(found, nodes, strict=True)]
    return checked_trace(TracedGraph(module, layers, names, inputs), example), graph


def _without_operators(not_fused: FusionReport) -> UnsupportedModelError:
    reasons = [f"{each.tensor}: {each.reason}" for each in not_fused.not_fused]
    # What is in standard operators of another form has its reason there.
    reasons += [f"{each.tensor}: {note}" for each in not_fused.fused for note in each.notes]
    return UnsupportedModelError(
        "The routing of this network cannot be traced.",
        "None of it was recognized as a capsule operator, whose iterations are known"
        + (f"; not recognized: {reasons[0]}." if reasons else "."),
        "Remove 'trace' from --with, or implement the routing with capsedge.ops.",
        details=reasons[1:],
    )


def _located(
    layer: TraceLayer,
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
) -> TraceLayer:
    """A layer whose parents see all children, with the map on which the children lie, if it is found."""
    known = layer.child_grid is not None and min(layer.child_grid) > 1
    if (
        known
        or not layer.dense
        or ROUTING_OPERATORS[operator_of(node.op_type)].layout is VOTES_AS_INPUT
    ):
        return layer
    found = child_map(model, node.input[0], feeds)
    if found is None:
        return layer
    return replace_node(
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
    """The layer of each routing node; attention passes that share a weight and a map form one layer.

    A layer is named after the parameter's module if the graph still has the parameter. Otherwise it is
    ``routing1``, ``routing2``, ..., and the last is ``classes`` if its parents lie on no map.
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
    """The properties that all passes of a layer share."""
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
