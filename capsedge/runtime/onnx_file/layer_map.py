"""Find the layer, routing iteration and group that each running operator belongs to.

ONNX Runtime runs an optimized graph: activations are merged into convolutions, function bodies are
inlined. Only the names of values remain. A file of capsedge is therefore read twice, as written and
as run, and the two are joined by these names:

- an operator outside the routing procedures has the layer of its weight or, if it only follows one
  (an activation, a reshape), of the nearest weight before it (``stem.0``, ``primary``);
- one that computes something else before any routing operator (a loop in standard operators, as users
  write routing) is not part of that layer: it has the module path that its exporter gave it, or else
  its type;
- a ``capsedge`` node, or the operators of its inlined body, have the layer of the node's weight;
- inside a body, an iteration begins with the first operator that uses the result of the previous one, and the
votes are the operands of the first weighted sum.

Of the ONNX nodes that a layer of an engine came from, TensorRT reports only the names. So
`capsedge build` names nodes ``capsedge/classes/routing.2/MatMul_17``: layer, group, iteration,
operator and number.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from capsedge.runtime.onnx_file.structure import GraphStructure, Node, Structure
from capsedge.spec.operators import (
    DOMAIN,
    OPERATORS,
    ROUTING_OPERATORS,
    IterationValue,
    iteration_value_in,
)

STEM, VOTES, ROUTING, CLASSIFIER, DECODER = "stem", "votes", "routing", "classifier", "decoder"
GROUPS = (STEM, VOTES, ROUTING, CLASSIFIER, DECODER)

# Values of inlined bodies: by ONNX Runtime, and by `capsedge export --ops portable`.
_INLINED = re.compile(
    r"^_inlfunc_(?P<operator>[A-Za-z][A-Za-z0-9]*?)(?P<number>_\d+)?(?P<instance>_token_\d+)?"
    r"_(?P=operator)_(?P<value>.+)$"
)
_PORTABLE = re.compile(
    r"^(?P<operator>[A-Za-z]+Routing(?:V\d+)?)_(?P<value>.+?)__(?P<number>)(?P<instance>\d+)$"
)
# As the exporter names weights, with a suffix if quantization derived another tensor from one.
_PARAMETER = re.compile(r"(weight|bias|scale|beta_u|beta_a)(_.+)?")
_WRAPPER = re.compile(r"^(model|module)\.")  # around the network, by the exporter
# Operators that belong to the layer before them, unless they join two computed values.
_FOLLOW = frozenset(
    ("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "Tanh", "Clip", "Gelu",
     "Softplus", "BatchNormalization", "LayerNormalization", "InstanceNormalization", "Dropout", "Identity",
     "Cast", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Concat",
     "Pad", "Shape", "Expand", "MaxPool", "AveragePool", "GlobalAveragePool", "Add", "Sub", "Mul", "Div",
     "QuantizeLinear", "DequantizeLinear")
)  # fmt: skip
_JOIN = frozenset(("Concat", "Reshape", "Expand", "Slice", "Gather", "Pad", "Unsqueeze", "Squeeze"))
# The path of modules that exporters write before a node's type: ``/primary/capsules.0/Conv``.
_PATH = re.compile(r"^/?(?P<path>[^/:]+(?:/[^/:]+)*)/[^/]+$")
# What ONNX Runtime writes before the name of a value that it casts, or takes a cast from.
_RENAMED = re.compile(r"^((InsertedPrecisionFreeCast|InsertedCast|FusedBack|FusedFront)_)+")


@dataclass(frozen=True)
class Location:
    """Where an operator belongs.

    Attributes:
        layer: name of the layer; empty if the file does not name it.
        group: one of GROUPS; empty if the file does not name layers, or for what belongs to none.
        iteration: routing iteration, from 1; None outside of routing.
        iterations: number of iterations of one fused operator; otherwise 1.
    """

    layer: str = ""
    group: str = ""
    iteration: int | None = None
    iterations: int = 1

    @property
    def label(self) -> str:
        """A readable name: ``classes, routing iteration 2``."""
        if self.group == VOTES:
            return f"{self.layer}, votes"
        if self.iteration is None:
            return self.layer or "(no layer named)"
        if self.iterations > 1:
            return f"{self.layer}, routing iterations {self.iteration}..{self.iterations} (fused)"
        return f"{self.layer}, routing iteration {self.iteration}"


@dataclass(frozen=True)
class _Instance:
    """One routing procedure (or squash, ...) of the graph, fused or inlined.

    Attributes:
        operator: its operator.
        body: the name of its function body (`spec.operators.instance_name`).
        key: distinguishes the calls of a body.
    """

    operator: str
    body: str
    key: str


def is_capsule_file(model: Structure) -> bool:
    """Whether a file states enough to name capsule layers."""
    return any(name.startswith("capsedge.") for name in model.metadata) or any(
        node.domain == DOMAIN for node in model.graph.nodes
    )


def locate(model: Structure, running: GraphStructure) -> list[Location]:
    """The place of every operator of the running graph, in its order.

    Args:
        model: the file as it was written.
        running: the graph that runs, of that file.
    """
    if not is_capsule_file(model):
        return [Location() for _ in running.nodes]
    written = _layers_of_values(model.graph)
    instances = [_instance(node) for node in running.nodes]
    names = _names(model.graph, instances, running)
    locations: list[Location] = []
    layer_of: dict[str, str] = {}
    passes: dict[str, int] = defaultdict(int)
    started: dict[_Instance, int] = {}
    ended: dict[str, int] = {}  # value -> routing iterations of its instance that it comes after
    after_routing: set[str] = set()
    beyond: set[str] = (
        set()
    )  # values after an operator that belongs to no layer, before any routing
    votes = _votes(running, instances)
    most = _iterations(running, instances)
    for node, instance in zip(running.nodes, instances, strict=True):
        above = [layer_of[i] for i in node.inputs if i in layer_of]
        routed = any(i in after_routing for i in node.inputs)
        if instance is not None and instance.operator in ROUTING_OPERATORS:
            location = _inside(node, instance, names[instance], passes, started, ended, votes)
            if location.iteration is not None and instance in most:
                location = replace(location, iteration=min(location.iteration, most[instance]))
            routed = True
            last = node.outputs[0] if node.outputs else ""
            _record_end(last, instance, ended, node.inputs)
        else:
            own = names.get(instance, "") if instance is not None else ""
            other = "" if own or routed else _other(node, written)
            apart = bool(other) or (not routed and any(i in beyond for i in node.inputs))
            layer = other or own or _layer_of_weight(node, written) or (above[0] if above else "")
            location = Location(layer, "" if apart else _group_outside(layer, routed))
            if apart:
                beyond.update(node.outputs)
        locations.append(location)
        for output in node.outputs:
            layer_of[output] = location.layer
            if routed:
                after_routing.add(output)
    return _between(running, locations)


def _inside(
    node: Node,
    instance: _Instance,
    layer: str,
    passes: dict[str, int],
    started: dict[_Instance, int],
    ended: dict[str, int],
    votes: dict[_Instance, set[str]],
) -> Location:
    """The place of an operator of a routing procedure."""
    if instance not in started:
        passes[layer] += 1
        started[instance] = passes[layer]
    if not _iterates(instance):
        # One pass an instance: concurrent routing is a schedule of nodes.
        first = started[instance]
    else:
        first = 1 + max((ended.get(i, 0) for i in node.inputs), default=0)
    if node.domain == DOMAIN:
        total = ROUTING_OPERATORS[instance.operator].iterations(node.attributes)
        return Location(layer, ROUTING, first, total if total > 1 else 1)
    if any(output in votes.get(instance, ()) for output in node.outputs):
        return Location(layer, VOTES)
    return Location(layer, ROUTING, first)


def _iterations(running: GraphStructure, instances: list[_Instance | None]) -> dict[_Instance, int]:
    """Iterations of every inlined procedure that iterates; operators after the last one belong to it."""
    most: dict[_Instance, int] = {}
    for node, instance in zip(running.nodes, instances, strict=True):
        if instance is None or not _iterates(instance):
            continue
        for output in node.outputs:
            mark = _iteration_value(output, instance)
            if mark is not None and mark.kind == "pose":
                most[instance] = max(most.get(instance, 1), mark.iteration)
    return most


def _record_end(
    value: str, instance: _Instance, ended: dict[str, int], inputs: tuple[str, ...]
) -> None:
    """Note how many iterations a value comes after, in procedures that iterate."""
    if not _iterates(instance):
        return
    mark = _iteration_value(value, instance)
    last = (
        mark is not None and mark.kind == ROUTING_OPERATORS[instance.operator].iteration_values[-1]
    )
    before = max((ended.get(i, 0) for i in inputs), default=0)
    ended[value] = mark.iteration if mark is not None and last else before


def _between(running: GraphStructure, locations: list[Location]) -> list[Location]:
    """Assign operators between two routing layers (a reshape) to the first one, not to the classifier."""
    leads_to_routing: set[str] = set()
    result = list(locations)
    for k in range(len(locations) - 1, -1, -1):
        node = running.nodes[k]
        ahead = any(output in leads_to_routing for output in node.outputs)
        if ahead and locations[k].group == CLASSIFIER:
            result[k] = replace(locations[k], group=ROUTING)
        if ahead or locations[k].group in (VOTES, ROUTING):
            leads_to_routing.update(node.inputs)
    return result


def _group_outside(layer: str, routed: bool) -> str:
    if not routed:
        return STEM
    return DECODER if layer.startswith("decoder") else CLASSIFIER


def _votes(running: GraphStructure, instances: list[_Instance | None]) -> dict[_Instance, set[str]]:
    """Values from which the votes are computed: those before the second operand of the first weighted sum."""
    producer = {o: k for k, node in enumerate(running.nodes) for o in node.outputs}
    first: dict[_Instance, int] = {}
    for k, (node, instance) in enumerate(zip(running.nodes, instances, strict=True)):
        if instance is None or node.domain == DOMAIN:
            continue
        if any(
            _iteration_value(o, instance) == (instance.operator, 1, "pose") for o in node.outputs
        ):
            first.setdefault(instance, k)
    values: dict[_Instance, set[str]] = {}
    for instance, k in first.items():
        if not ROUTING_OPERATORS[instance.operator].couplings:
            continue  # no separate votes: their sum is one linear map
        product = _nearest_product(running, producer, instances, k)
        operand = running.nodes[product].inputs[1] if product is not None else ""
        if operand in producer:
            values[instance] = _before(running, producer, instances, instance, operand)
    return values


def _nearest_product(
    running: GraphStructure, producer: dict[str, int], instances: list[_Instance | None], k: int
) -> int | None:
    """The nearest matrix product before an operator, in the same procedure."""
    instance, front, seen = instances[k], [k], set()
    while front:
        current = front.pop(0)
        if current in seen:
            continue
        seen.add(current)
        if "MatMul" in running.nodes[current].op:
            return current
        front += [
            producer[i]
            for i in running.nodes[current].inputs
            if i in producer and instances[producer[i]] == instance
        ]
    return None


def _before(
    running: GraphStructure,
    producer: dict[str, int],
    instances: list[_Instance | None],
    instance: _Instance,
    value: str,
) -> set[str]:
    values, front = set(), [value]
    while front:
        name = front.pop()
        k = producer.get(name)
        if name in values or k is None or instances[k] != instance:
            continue
        values.add(name)
        front += running.nodes[k].inputs
    return values


def _instance(node: Node) -> _Instance | None:
    """The procedure that an operator of the running graph is, or is part of."""
    if node.domain == DOMAIN and node.operator in OPERATORS:
        key = node.name or (node.outputs[0] if node.outputs else "")
        return _Instance(node.operator, node.op, key)
    for name in (*node.outputs, node.name):
        match = _INLINED.match(name) or _PORTABLE.match(name)
        if match and match["operator"] in OPERATORS:
            body = match["operator"] + (match["number"] or "")
            return _Instance(match["operator"], body, body + (match["instance"] or ""))
    return None


def _iteration_value(value: str, instance: _Instance) -> IterationValue | None:
    """What a value of a procedure's body is, if it is one of an iteration."""
    match = _INLINED.match(value) or _PORTABLE.match(value)
    return iteration_value_in(instance.operator, match["value"]) if match else None


def _iterates(instance: _Instance) -> bool:
    spec = ROUTING_OPERATORS.get(instance.operator)
    return spec is not None and spec.iterates


def _names(
    written: GraphStructure, instances: list[_Instance | None], running: GraphStructure
) -> dict[_Instance, str]:
    """The layer of every procedure: that of the written node's weight, matched in order."""
    layers: dict[str, list[str]] = defaultdict(list)
    by_node: dict[str, str] = {}
    for node in written.nodes:
        if node.domain == DOMAIN and node.operator in OPERATORS:
            # Weights of the user's own routing are constants without a module; their node has a name.
            unnamed_layer = node.name if node.operator in ROUTING_OPERATORS else ""
            layer = layer_of_weights(node) or unnamed_layer
            layers[node.op].append(layer)
            by_node[node.name] = layer
    result: dict[_Instance, str] = {}
    inlined: dict[str, list[_Instance]] = defaultdict(list)
    for instance in instances:
        if instance is None or instance in result or instance in inlined[instance.body]:
            continue
        if instance.key in by_node:
            result[instance] = by_node[instance.key]
        else:
            inlined[instance.body].append(instance)
    unnamed: dict[str, int] = defaultdict(int)
    for body, group in inlined.items():
        group.sort(key=_order)
        known = layers.get(body, [])
        for k, instance in enumerate(group):
            operator = instance.operator
            unnamed[operator] += 1
            fallback = (
                "" if operator not in ROUTING_OPERATORS else f"{operator} {unnamed[operator]}"
            )
            result[instance] = (known[k] if len(known) == len(group) else "") or fallback
    return result


def _order(instance: _Instance) -> int:
    digits = re.search(r"(\d{1,18})$", instance.key[-18:])
    return int(digits.group(1)) if digits else -1


@dataclass
class _Written:
    """The values of the file as it was written.

    Attributes:
        layers: the layer of each: of the nearest weight before it.
        others: the name of each that belongs to no layer.
    """

    layers: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def _layers_of_values(graph: GraphStructure) -> _Written:
    written, routed = _Written(), set[str]()
    stored = {value.name for value in graph.initializers}
    stored |= {o for node in graph.nodes if node.op == "Constant" for o in node.outputs}
    for node in graph.nodes:
        own, instance = layer_of_weights(node), _instance(node)
        after = any(i in routed for i in node.inputs)
        after |= instance is not None and instance.operator in ROUTING_OPERATORS
        computed = {i for i in node.inputs if i and i not in stored}
        above = [written.layers[i] for i in node.inputs if written.layers.get(i)]
        follows = node.op in _FOLLOW and (len(computed) < 2 or node.op in _JOIN)
        apart = any(i in written.others for i in computed)
        other = ""
        if not (own or after or instance) and computed and (apart or not follows):
            other = _name_of_other(node, stored)
        for output in node.outputs:
            if other:
                written.others[output] = other
            else:
                written.layers[output] = own or (above[0] if above else "")
            if after:
                routed.add(output)
    return written


def _name_of_other(node: Node, stored: set[str]) -> str:
    """The name of an operator that belongs to no layer: its weight's, its module path, or its type."""
    weight = next((i for i in node.inputs if i in stored and "." in i), "")
    path = _PATH.match(node.name)
    return weight or (path["path"].replace("/", ".") if path else "") or node.op


def _other(node: Node, written: _Written) -> str:
    """The name of an operator of the running graph if it belongs to no layer; empty if it does."""
    names = [_RENAMED.sub("", name) for name in (*node.outputs, node.name.removesuffix("_nchwc"))]
    return next((written.others[name] for name in names if name in written.others), "")


def layer_of_weights(node: Node) -> str:
    """The module whose weights a node uses, from the exporter's names; empty if there is none."""
    for name in node.inputs:
        stem, dot, leaf = _RENAMED.sub("", name).rpartition(".")
        if dot and _PARAMETER.fullmatch(leaf):
            return _WRAPPER.sub("", stem).removesuffix(".conv")
    return ""


def _layer_of_weight(node: Node, written: _Written) -> str:
    """Operators by the names of their outputs: fused operators keep the name of the last value."""
    for name in (*node.outputs, node.name.removesuffix("_nchwc")):
        layer = written.layers.get(_RENAMED.sub("", name))
        if layer:
            return layer
    return layer_of_weights(node)


# --- Node names that state their layer, for TensorRT ---

_NAME = re.compile(
    rf"capsedge/(?P<layer>[^/\x1e\[\]+]*)/(?P<group>{'|'.join(GROUPS)})"
    r"(?:\.(?P<iteration>\d{1,4})(?:-(?P<last>\d{1,4}))?)?/\w+_\d+"
)


def node_name(location: Location, op: str, number: int) -> str:
    """The name of a node that belongs to a layer."""
    group = location.group
    if location.iteration is not None:
        last = f"-{location.iterations}" if location.iterations > 1 else ""
        group = f"{group}.{location.iteration}{last}"
    layer = re.sub(r"[/\x1e\[\]+]", "_", location.layer)
    return f"capsedge/{layer}/{group}/{op}_{number}"


def engine_locations(words: str) -> list[Location]:
    """The places of all nodes that are named in what TensorRT says of a layer."""
    return [
        Location(
            match["layer"],
            match["group"],
            int(match["iteration"]) if match["iteration"] else None,
            int(match["last"] or 1),
        )
        for match in _NAME.finditer(words)
    ]


def merge_locations(locations: Sequence[Location]) -> Location:
    """One place for nodes that run as one: all of their layers, the group of most, and its iterations."""
    if not locations:
        return Location()
    layers = [*dict.fromkeys(location.layer for location in locations)]
    group = Counter(location.group for location in locations).most_common(1)[0][0]
    first, last, iterations = None, None, 1
    if group == ROUTING:
        numbers = [location.iteration or 1 for location in locations if location.group == ROUTING]
        ends = [max(p.iteration or 1, p.iterations) for p in locations if p.group == ROUTING]
        first, last = min(numbers), max(ends)
        iterations = last if last > first else 1
    return Location(" + ".join(layers), group, first, iterations)
