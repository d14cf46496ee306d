"""Trace a model's routing: its layers and iterations, and the values that they compute in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.graph.trace_outputs import with_trace
from capsedge.models import CapsuleModel
from capsedge.models.layers import DynamicCapsules
from capsedge.models.ops.registration import RoutingCall, RoutingCalls
from capsedge.models.ops.unrolled import unroll
from capsedge.models.segcaps import MapCapsules
from capsedge.runtime.session.routing_trace import PREFIX, TraceLayer
from capsedge.spec import limits
from capsedge.spec.operators import OPERATORS, WINDOWS

# --- The trace ---

_MOST_BYTES = limits.RUN_BYTES // 2  # for one image, besides the other outputs of a run


class Traced(nn.Module):
    """A module that also returns the values of every routing iteration.

    Args:
        module: returns a tuple.
        layers: the routed layers.
        calls: the layer of each call of a routing operator, in order.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[TraceLayer], calls: Sequence[str]
    ) -> None:
        super().__init__()
        self.module, self.layers, self.calls = module, tuple(layers), tuple(calls)
        self.sizes: dict[str, tuple[int, ...]] = {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values returned after the module's own outputs."""
        return tuple(name for layer in self.layers for name in layer.outputs.values())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The module's outputs, and the trace."""
        outputs, calls = self._run(*inputs)
        passes: dict[str, list[RoutingCall]] = {}
        for name, call in zip(self.calls, calls, strict=True):
            passes.setdefault(name, []).append(call)
        traced = [
            each
            for layer in self.layers
            for each in _traced(layer, passes[layer.name], len(inputs[0]))
        ]
        self.sizes = {n: tuple(t.shape[1:]) for n, t in zip(self.outputs, traced, strict=True)}
        return (*outputs, *traced)

    def _run(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], list[RoutingCall]]:
        """The module's outputs, and its calls of routing operators."""
        with RoutingCalls() as recorded:
            outputs = self.module(*inputs)
        return outputs, recorded.calls

    @property
    def bytes_per_image(self) -> int:
        """Bytes of the trace of one image, once it has run."""
        return 4 * sum(math.prod(size) for size in self.sizes.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Text for the user."""
        size = self.bytes_per_image / limits.MIB
        layers = ", ".join(layer.name for layer in self.layers)
        return (
            f"the trace of {layers} takes {size:.2f} MiB per image; its routing runs in standard "
            "operators, without the exact rewrites",
        )

    def write(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """A graph with the outputs of the trace; see `graph.trace_outputs.with_trace`."""
        return with_trace(model, self.layers, self.calls, self.sizes)


def _traced(layer: TraceLayer, calls: Sequence[RoutingCall], batch: int) -> list[Tensor]:
    """The values of a layer in the order of its outputs, each ``[N, T, ...]``."""
    made = [unroll(call.operator, call.args) for call in calls]
    map_ = () if layer.dense else layer.grid
    behind = 4 if OPERATORS[calls[0].operator].layout is WINDOWS else 2
    found = []
    for kind in layer.outputs:
        whole = torch.cat([getattr(each, kind) for each in made], 1)
        rest = whole.shape[behind:]
        if len(whole) != batch:  # positions are in the operator's batch
            whole = whole.reshape(batch, -1, layer.iterations, *rest).transpose(1, 2)
        found.append(whole.reshape(batch, layer.iterations, *map_, *rest))
    return found


def trace_routing(module: nn.Module, model: CapsuleModel, images: Tensor) -> Traced:
    """The contents of a model's trace.

    Args:
        module: returns the file's outputs; contains the model.
        images: an example.

    Raises:
        UnsupportedModelError: a layer routes without a capsule operator, or none routes.
        UsageError: the values of one image take too much memory.
    """
    with torch.no_grad(), RoutingCalls() as recorded:
        couplings = model(images).couplings
    if not recorded.calls and any(isinstance(m, MapCapsules) for m in model.modules()):
        raise UnsupportedModelError(
            "This model has no routing to trace.",
            "Its layers are routed once, or have one type of capsules each, so all votes count equally.",
            "Remove 'trace' from --with.",
        )
    of_classes = next(
        (
            call
            for call in reversed(recorded.calls)
            if torch.equal(couplings.flatten(), call.outputs[-1].flatten())
        ),
        None,
    )
    if of_classes is None:
        raise UnsupportedModelError(
            "The routing of this model cannot be traced.",
            "Its class capsules are routed by operations that no capsule operator covers.",
            "Remove 'trace' from --with.",
        )
    names = {p.data_ptr(): name.rpartition(".")[0] for name, p in model.named_parameters()}
    calls = []
    for number, call in enumerate(recorded.calls, start=1):
        # Where votes are given, a bias of the parents tells the layer.
        own = [call.weight] if call.weight is not None else call.args
        known = [names.get(each.data_ptr(), "") for each in own if isinstance(each, Tensor)]
        other = "classes" if call is of_classes else f"routing{number}"
        calls.append(next(filter(None, known), other))
    modules = dict(model.named_modules())
    layers = [
        _on_map(layer, images) if isinstance(modules.get(layer.name), MapCapsules) else layer
        for layer in layers_of(calls, recorded.calls, len(images), modules)
    ]
    return checked_trace(Traced(module, layers, calls), (images,))


def _on_map(layer: TraceLayer, images: Tensor) -> TraceLayer:
    """A layer of SegCaps: its map has the sides of the images, halved as often as it has fewer places."""
    height, width = images.shape[2:]
    halved = round(math.sqrt(height * width / math.prod(layer.grid)))
    return replace(layer, grid=(height // halved, width // halved))


def checked_trace(traced: Traced, example: Sequence[Tensor]) -> Traced:
    """A trace that has run once, so that its sizes are known.

    Raises:
        UsageError: the values of one image take too much memory.
    """
    with torch.no_grad():
        traced.eval()(*example)
    _check_size(traced)
    return traced


def layers_of(
    names: Sequence[str],
    calls: Sequence[RoutingCall],
    batch: int,
    modules: Mapping[str, nn.Module] | None = None,
) -> list[TraceLayer]:
    """The layers that calls of routing operators belong to.

    Args:
        names: the layer of each call.
        batch: the batch size of the calls.
        modules: modules by layer name, used to locate the children of a dense operator.
    """
    of: dict[str, list[RoutingCall]] = {}
    for name, call in zip(names, calls, strict=True):
        of.setdefault(name, []).append(call)
    known = modules or {}
    return [_layer(name, of[name], known.get(name), batch) for name in of]


def _layer(
    name: str, calls: Sequence[RoutingCall], module: nn.Module | None, batch: int
) -> TraceLayer:
    first = calls[0]
    spec = OPERATORS[first.operator]
    outputs = {kind: f"{PREFIX}{name}/{kind}" for kind in spec.traced}
    arguments = dict(zip((*spec.input_names, *spec.attribute_names), first.args, strict=True))
    iterations = arguments.get("iterations", len(calls))
    geometry: dict[str, Any] = {}
    if spec.layout is WINDOWS:
        geometry = _of_windows(arguments, first.outputs[0])
    elif isinstance(module, DynamicCapsules):
        geometry = {
            "grid": module.grid,
            "child_grid": module.child_grid,
            "kernel": module.kernel,
            "strides": (module.stride, module.stride),
        }
    elif len(first.args[0]) != batch:
        geometry = {"grid": (len(first.args[0]) // batch, 1)}
    return TraceLayer(name, OPERATORS[first.operator].routing, iterations, outputs, **geometry)


def _of_windows(arguments: dict[str, object], parents: Tensor) -> dict[str, tuple[int, int]]:
    """The geometry of a layer over windows; if the weight is shared, one window covers all positions."""
    pose, weight, strides = (arguments[k] for k in ("pose", "weight", "strides"))
    assert isinstance(pose, Tensor)
    assert isinstance(weight, Tensor)
    assert isinstance(strides, list)
    child_grid = pose.shape[1], pose.shape[2]
    shared = bool(arguments.get("shared", False))
    return {
        "grid": (parents.shape[1], parents.shape[2]),
        "child_grid": child_grid,
        "kernel": child_grid if shared else (weight.shape[0], weight.shape[1]),
        "strides": (1, 1) if shared else (strides[0], strides[1]),
    }


def _check_size(traced: Traced) -> None:
    """Refuse a trace that is larger for one run than a session may read."""
    if traced.bytes_per_image <= _MOST_BYTES:
        return
    largest = max(traced.sizes, key=lambda name: math.prod(traced.sizes[name]))
    raise UsageError(
        f"The trace takes {traced.bytes_per_image / limits.MIB:.0f} MiB for each image.",
        f"At most {_MOST_BYTES // limits.MIB} MiB can be read; the largest output is {largest} "
        f"{list(traced.sizes[largest])}.",
        "Remove 'trace' from --with, or use fewer iterations (--iters).",
    )
