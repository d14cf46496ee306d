"""Read routing values after every iteration, from an ONNX file and from its reference.

The exporter names these values in the function bodies (``spec.operators``); inlining keeps the names and
appends a number. A copy of the file also outputs them; the file itself is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.graph.ir import attributes_of
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
from capsedge.runtime.backends.onnxruntime_session import SessionSettings
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.spec.operators import (
    DOMAIN,
    OPERATORS,
    ROUTING_OPERATORS,
    operator_of,
    parse_iteration_value,
)

# --- The artefact ---

# What a first pass, rewritten, is one of.
_PASSES = {o.first_pass: o.name for o in OPERATORS.values() if o.first_pass}


@dataclass
class RoutingSite:
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
        self.sites: list[RoutingSite] = []
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        open_site: RoutingSite | None = None
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
                    found = parse_iteration_value(name)
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
        how = SessionSettings(library=self._library, nodes=nodes)
        backend = OnnxRuntimeBackend(self._model.SerializeToString(), Path("the probe"), how)
        port = backend.inputs[0]
        return backend.run({port.name: images.astype(port.dtype)}, self._names)


def _site(operator: str) -> RoutingSite:
    """A place without values yet."""
    return RoutingSite(_PASSES.get(operator, operator), uniform=operator in _PASSES)


def _from_outside(node: onnx.NodeProto) -> RoutingSite:
    """The inputs and outputs of a node."""
    operator = operator_of(node.op_type)
    site = _site(operator)
    iterations = ROUTING_OPERATORS[operator].iterations(attributes_of(node))
    site.add(0, "pose", node.input[0])
    site.add(iterations, "pose", node.output[0])
    if ROUTING_OPERATORS[operator].activations:
        site.add(0, "activation", node.input[1])
        site.add(iterations, "activation", node.output[1])
    return site


def _opened(
    model: onnx.ModelProto, node: onnx.NodeProto, body: onnx.FunctionProto, number: int
) -> RoutingSite:
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
            found = parse_iteration_value(name)
            if found is not None:
                outside = f"probe{number}_{name}"
                own.output.append(name)
                node.output.append(outside)
                site.add(found.iteration, found.kind, outside)
    model.functions.append(own)
    return site


# --- The reference ---

Array = NDArray[Any]


@dataclass
class RoutingStep:
    """Values after one routing iteration; iteration 0 is the layer's input.

    Attributes:
        pose: of the parents (iteration 0: of the children), positions before types.
        couplings: ``[..., I, M]``; None if there are none.
        length: of the capsules: activations with EM, otherwise norms of the poses.
    """

    iteration: int
    pose: Array
    length: Array
    couplings: Array | None = None


@dataclass
class RoutingCallValues:
    """One call of a routing operator.

    Attributes:
        operator: its ONNX type.
        layer: name of the module whose weight it uses.
        steps: iteration 0 and every iteration of this call.
        uniform: attention without parents: the first pass.
        sources: the calls that made its children and, with attention, its parents; None for other sources.
        live: whether its results reach the last call.
    """

    operator: str
    layer: str
    steps: list[RoutingStep]
    uniform: bool = False
    sources: tuple[RoutingCallValues | None, ...] = ()
    live: bool = field(default=False, compare=False)


def unroll_routing_calls(module: nn.Module, images: Tensor) -> list[RoutingCallValues]:
    """Run a module and unroll every routing operator that it calls, in order.

    The unrolled values come from the operator's own definition, run with 1, 2, ... T iterations. Calls that
    do not reach the last one (outside the light cone of concurrent routing) are not ``live``.
    """
    recorder = _RoutingRecorder(module)
    with torch.no_grad(), recorder:
        module(images)
    if recorder.calls:
        _set_live(recorder.calls[-1])
    return recorder.calls


def _set_live(call: RoutingCallValues) -> None:
    if call.live:
        return
    call.live = True
    for source in call.sources:
        if source is not None:
            _set_live(source)


class _RoutingRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[RoutingCallValues] = []
        self._layers = {
            p.data_ptr(): name.rpartition(".")[0] or name for name, p in module.named_parameters()
        }
        self._made: dict[int, RoutingCallValues] = {}
        self._passes: dict[str, int] = {}
        self._alive: list[Tensor] = []  # kept, so that no address that identifies a call is reused
        unrolled: dict[str, Callable[..., RoutingCallValues]] = {
            "DynamicRouting": self._dynamic,
            "VoteRouting": self._dynamic,
            "EMRouting": self._em,
            "AttentionRouting": self._attention,
            "SelfAttentionRouting": self._self_attention,
        }
        self._unroll = {
            getattr(torch.ops.capsedge, o.torch).default: (o.name, unrolled[o.name])
            for o in OPERATORS.values()
            if o.routes and o.torch
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._unroll:
            operator, unroll = self._unroll[func]
            call = unroll(operator, *args)
            call.sources = (*self._sources(args[0]), *call.sources)
            self.calls.append(call)
            self._made[result[0].data_ptr()] = call
            self._alive += [result[0], args[0]]
        return result

    def _sources(self, x: Tensor) -> tuple[RoutingCallValues | None]:
        return (self._made.get(x.data_ptr()),)

    def _layer(self, weight: Tensor) -> str:
        return self._layers.get(weight.data_ptr(), f"routing {len(self.calls) + 1}")

    def _dynamic(self, operator: str, *args: Any) -> RoutingCallValues:
        spec = OPERATORS[operator]
        function, at = getattr(torch.ops.capsedge, spec.torch), len(spec.inputs)
        steps = [_step(0, args[0])]
        for t in range(1, args[at] + 1):
            v, c = function(*args[:at], t, *args[at + 1 :])
            steps.append(_step(t, v, c))
        return RoutingCallValues(operator, self._layer(args[spec.weight]), steps)

    def _em(
        self, operator: str, pose: Tensor, a: Tensor, weight: Tensor, *rest: Any
    ) -> RoutingCallValues:
        beta_u, beta_a, coordinates, iterations, strides, temperatures, *others = rest
        steps = [_step(0, pose, length=a)]
        for t in range(1, iterations + 1):
            mean, activation, r = torch.ops.capsedge.em_routing(
                pose, a, weight, beta_u, beta_a, coordinates, t, strides, temperatures[:t], *others
            )
            steps.append(_step(t, mean, r, activation))
        return RoutingCallValues(operator, self._layer(weight), steps)

    def _self_attention(
        self, operator: str, u: Tensor, weight: Tensor, *rest: Any
    ) -> RoutingCallValues:
        v, c = torch.ops.capsedge.self_attention_routing(u, weight, *rest)
        return RoutingCallValues(operator, self._layer(weight), [_step(0, u), _step(1, v, c)])

    def _attention(
        self, operator: str, pose: Tensor, parent: Tensor, weight: Tensor, *rest: Any
    ) -> RoutingCallValues:
        layer = self._layer(weight)
        self._passes[layer] = self._passes.get(layer, 0) + 1
        out, c = torch.ops.capsedge.attention_routing(pose, parent, weight, *rest)
        steps = [_step(0, pose), _step(self._passes[layer], out, c)]
        uniform = not bool(parent.any())
        return RoutingCallValues(operator, layer, steps, uniform, self._sources(parent))


def _step(
    iteration: int, pose: Tensor, couplings: Tensor | None = None, length: Tensor | None = None
) -> RoutingStep:
    if length is None:
        length = pose.norm(dim=-1)
    return RoutingStep(
        iteration,
        pose.numpy().copy(),
        length.numpy().copy(),
        None if couplings is None else couplings.numpy().copy(),
    )
