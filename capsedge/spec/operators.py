"""Define the operators of the domain ``capsedge``: attributes, votes, names in files.

docs/reference/operators.md specifies them. How an operator is computed (its body, its kernels, its
PyTorch definition) lives elsewhere; everything else that is specific to an operator is here. Only
the standard library is imported, because ``capsedge infer`` reads this table.

ONNX distinguishes functions of the same name by ``overload``, which ONNX Runtime ignores before
1.27. Distinct bodies of an operator therefore get distinct names: ``DynamicRouting``,
``DynamicRouting_2``, ``DynamicRouting_3``. The operator library has kernels for each such series.

Values of a routing iteration are named in the function body, prefixed with its operator
(``DynamicRouting_iter2_couplings``); inlining keeps the name and appends a number. The probe of
routing errors, the sensitivity analysis and the attribution of times look for these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from capsedge.spec.onnx_wire import DOMAIN as DOMAIN

# --- The table of operators ---

Default = int | float | tuple[int, ...] | tuple[float, ...] | None


@dataclass(frozen=True)
class Value:
    """An input or output of a capsule operator.

    Attributes:
        name: its formal name.
        shape: the names of its dimensions, as in docs/reference/operators.md. The same name is the same size;
            ``N`` is the batch, ``...`` any dimensions. ``H'`` and ``W'`` are positions of windows: see
            `WINDOWS_OF`.
        type: ``T`` float or float16, the same for all ``T`` of a node; ``f`` float32; ``i`` int32;
            ``b`` int8; ``B`` uint8.
        optional: whether a node may leave it out; only the last inputs of an operator are.
        per_image: whether it changes the couplings of single images. The TensorRT plugins lack such inputs:
            a node that has one runs as its function body there.
        ones: those of the dimensions that may be 1 instead: the same for all children, parents or images.
        body_ones: those of `ones` that the TensorRT plugins lack: a node in which one is 1, but larger in its
            other inputs, runs as its function body there.
    """

    name: str
    shape: tuple[str, ...] = ()
    type: str = "T"
    optional: bool = False
    per_image: bool = False
    ones: tuple[str, ...] = ()
    body_ones: tuple[str, ...] = ()

    @property
    def batched(self) -> bool:
        """Whether its first dimension is the batch; an input without a batch is a weight."""
        return self.shape[:1] in (("N",), ("...",))


@dataclass(frozen=True)
class Attribute:
    """An attribute. The exporter writes every one; a node that lacks one has its default.

    Attributes:
        type: ``int``, ``float``, ``ints`` or ``floats``.
        default: default of the specification; None if there is none and it must be given.
        flag: whether it is 0 or 1.
        positive: whether it, or each of its numbers, is above zero.
    """

    name: str
    type: str
    default: Default = None
    flag: bool = False
    positive: bool = False


# A dimension that follows from the sizes of a map and a window, by the stride of an axis; 1 where the windows
# share one position (attribute ``shared``).
WINDOWS_OF = {"H'": ("H", "Kh", 0), "W'": ("W", "Kw", 1)}


@dataclass(frozen=True)
class RoutingWeightLayout:
    """The meaning of the axes of a routing weight, and which of them the scale of an INT8 weight keeps."""

    weight: tuple[str, ...]
    scale: tuple[str, ...]

    @property
    def shared(self) -> tuple[int, ...]:
        """The axes over which INT8 weights share a scale."""
        return tuple(k for k, axis in enumerate(self.weight) if axis not in self.scale)


DENSE = RoutingWeightLayout(("I", "J", "Pout", "Pin"), ("J", "Pout"))
WINDOWS = RoutingWeightLayout(("Kh", "Kw", "C", "M", "K", "L"), ("M", "L"))
VOTES_AS_INPUT = RoutingWeightLayout((), ())  # votes are an input: there is no weight


@dataclass(frozen=True)
class Operator:
    """A capsule operator of the domain ``capsedge``.

    Attributes:
        name: its type in ONNX.
        inputs, outputs: those of the ONNX node, in order; the first input is a batch of poses, optional ones
            are the last.
        attributes: in the order of the PyTorch operator's arguments.
        torch: name of the PyTorch operator in ``torch.ops.capsedge``; empty if the exporter creates the node.
        layout: of the weight of a routing operator, from which the shape of its votes follows
            (``spec.operators``); None for other operators.
        routing: its word in files, of ``vocabularies.ROUTINGS``; empty for one that no trace has.
        iteration_values: of a routing operator, the kinds of values that its body names after every iteration
            (``spec.operators``), in the order in which they are computed.
        couplings: whether couplings can be returned, as a further output.
        traced: the kinds of values that a traced body has of every iteration (`export --with trace`).
        freezable: whether constant couplings make it one matrix product.
        first_pass: the operator that it equals if its parents are zero; empty if there is none.
        plugin: whether the TensorRT plugin library has it.
        standard: the standard operator that is its body; empty for others. GPUs have kernels for it, so the
            body there counts as a kernel.
        sums, agreements: products per element of a vote, in an iteration and between two iterations.
        per_element: operations per element of the output, for operators that do not route.
        quantizes: the operator of which this is the variant with INT8 weights; empty for others.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: tuple[Attribute, ...] = ()
    torch: str = ""
    layout: RoutingWeightLayout | None = None
    routing: str = ""
    iteration_values: tuple[str, ...] = ()
    couplings: bool = False
    traced: tuple[str, ...] = ()
    freezable: bool = False
    first_pass: str = ""
    plugin: bool = False
    standard: str = ""
    sums: int = 0
    agreements: int = 0
    per_element: int = 0
    quantizes: str = ""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Formal names of the inputs."""
        return tuple(v.name for v in self.inputs)

    def present_inputs(self, count: int) -> tuple[Value, ...]:
        """The inputs of a node that has this many: optional ones are left out from the end."""
        if not self.takes(count):
            raise ValueError(f"{self.name} with {count} inputs")
        return self.inputs[:count]

    def takes(self, count: int) -> bool:
        """Whether a node may have this many inputs."""
        return sum(not v.optional for v in self.inputs) <= count <= len(self.inputs)

    def per_image(self, count: int) -> bool:
        """Whether a node that has this many inputs has some `Value.per_image`."""
        return any(v.per_image for v in self.inputs[:count])

    def has_plugin(self, shapes: Sequence[Sequence[int | str | None] | None]) -> bool:
        """Whether the TensorRT plugin library runs a node; a shape is None if not known."""
        return self.plugin and not self.plugin_lacks(shapes)

    @property
    def has_cuda_kernel(self) -> bool:
        """Whether the CUDA kernels compute it; those of an operator take its INT8 weights, too."""
        return self.plugin or (bool(self.quantizes) and OPERATORS[self.quantizes].plugin)

    def plugin_lacks(self, shapes: Sequence[Sequence[int | str | None] | None]) -> bool:
        """Whether the plugins and the CUDA kernels lack such inputs: see `Value`."""
        if self.per_image(len(shapes)):
            return True
        sizes: dict[str, object] = {}
        inputs = [(v, s) for v, s in zip(self.inputs, shapes, strict=False) if s is not None]
        for value, shape in inputs:
            for name, size in zip(value.shape, shape, strict=False):
                if name not in value.ones:
                    sizes.setdefault(name, size)
        return any(
            name in value.body_ones and size == 1 and sizes.get(name) != 1
            for value, shape in inputs
            for name, size in zip(value.shape, shape, strict=False)
        )

    @property
    def output_names(self) -> tuple[str, ...]:
        """Formal names of the outputs."""
        return tuple(v.name for v in self.outputs)

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(a.name for a in self.attributes)

    @property
    def weight(self) -> int:
        """Index of the weight among the inputs; 0, the votes, where these are given."""
        return 0 if self.layout is VOTES_AS_INPUT else self.input_names.index("weight")

    @property
    def routes(self) -> bool:
        """Whether it is a routing operator."""
        return self.layout is not None

    @property
    def iterates(self) -> bool:
        """Whether a node makes several iterations; nodes of the other operators are a single pass."""
        return "iterations" in self.attribute_names

    @property
    def activations(self) -> bool:
        """Whether capsules have separate activations: the second input and output."""
        return len(self.outputs) > 1

    @property
    def procedure(self) -> str:
        """The operator itself; for one with INT8 weights, the one without."""
        return self.quantizes or self.name

    @property
    def in_8_bits(self) -> bool:
        """Whether its weight is INT8."""
        return any(v.type == "b" for v in self.inputs)

    @property
    def int8(self) -> str:
        """The variant of this operator with INT8 weights; empty if there is none."""
        weighs = self.routes and self.layout is not VOTES_AS_INPUT
        return f"Quantized{self.name}" if weighs and not self.quantizes else ""

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes of a node: its own, and the defaults of those that it leaves out."""
        defaults = {a.name: a.default for a in self.attributes if a.default is not None}
        return {**defaults, **attributes}

    def integer(self, attributes: Mapping[str, Any], name: str) -> int:
        """A whole number among a node's attributes; if missing or not a number, its default, otherwise 1."""
        number = attributes.get(name)
        if isinstance(number, int):
            return number
        default = next((a.default for a in self.attributes if a.name == name), None)
        return default if isinstance(default, int) else 1

    def iterations(self, attributes: Mapping[str, Any]) -> int:
        """Iterations of a node."""
        return self.integer(attributes, "iterations") if self.iterates else 1


_TRACED = ("couplings", "poses", "agreement")

_STRIDES = Attribute("strides", "ints", (1, 1), positive=True)


def _flag(name: str, default: int = 0) -> Attribute:
    return Attribute(name, "int", default, flag=True)


def _epsilon(default: float) -> Attribute:
    return Attribute("epsilon", "float", default, positive=True)


_SQUASH = Operator(
    "Squash",
    (Value("x", ("...", "P")),),
    (Value("y", ("...", "P")),),
    (Attribute("axis", "int", -1), _epsilon(1e-8)),
    torch="squash",
    plugin=True,
    per_element=4,
)
_PER_IMAGE = (
    Value("image_prior", ("N", "I", "J"), optional=True, per_image=True, ones=("N", "I", "J")),
    Value("mask", ("N", "I"), optional=True, per_image=True, ones=("N", "I")),
)
_AGREEMENT = (
    Attribute("iterations", "int", 3, positive=True),
    _flag("leaky"),
    _flag("over_children"),
    _flag("replace"),
    _flag("normalize"),
    _flag("elementwise"),
    Attribute("agreement_scale", "float", 1.0),
    _epsilon(1e-8),
)
_DYNAMIC = Operator(
    "DynamicRouting",
    (
        Value("u", ("N", "I", "Pin")),
        Value("weight", DENSE.weight, ones=("I",)),
        Value("log_prior", ("I", "J"), ones=("I",), body_ones=("I",)),
        Value("bias", ("J", "Pout")),
        Value("vote_bias", ("I", "J", "Pout"), optional=True, ones=("I",)),
        *_PER_IMAGE,
    ),
    (Value("v", ("N", "J", "Pout")),),
    _AGREEMENT,
    torch="dynamic_routing",
    layout=DENSE,
    routing="dynamic",
    iteration_values=("couplings", "pose"),
    couplings=True,
    traced=_TRACED,
    freezable=True,
    plugin=True,
    sums=1,
    agreements=1,
)
_VOTES = replace(
    _DYNAMIC,
    name="VoteRouting",
    inputs=(
        Value("votes", ("N", "I", "J", "P"), ones=("J",), body_ones=("J",)),
        Value("log_prior", ("I", "J"), ones=("I",), body_ones=("I",)),
        Value("bias", ("J", "P")),
        *_PER_IMAGE,
    ),
    outputs=(Value("v", ("N", "J", "P")),),
    torch="vote_routing",
    layout=VOTES_AS_INPUT,
)
_MAP = ("N", "H", "W", "C")  # a map of capsules: rows, columns, types
_GRID = ("N", "H'", "W'", "M")  # the map of their parents
# What implementations of EM routing add where the paper adds nothing; none is negative.
EM_EPSILONS = ("variance_epsilon", "activation_epsilon", "cost_epsilon")
_EM = Operator(
    "EMRouting",
    (
        Value("pose", (*_MAP, "P")),
        Value("a", _MAP),
        Value("weight", WINDOWS.weight),
        Value("beta_u", ("M",)),
        Value("beta_a", ("M",)),
        Value("coordinates", ("H", "W", "P"), optional=True),
    ),
    (Value("pose_out", (*_GRID, "P")), Value("a_out", _GRID)),
    (
        Attribute("iterations", "int", positive=True),
        _STRIDES,
        Attribute("inverse_temperatures", "floats"),
        _flag("coordinate_addition"),
        _flag("shared"),
        _flag("normalize_activations"),
        _flag("ones_first"),
        _epsilon(1e-6),
        *(Attribute(name, "float", 0.0) for name in EM_EPSILONS),
    ),
    torch="em_routing",
    layout=WINDOWS,
    routing="em",
    iteration_values=("couplings", "pose", "logit"),
    couplings=True,
    traced=(*_TRACED, "distances", "activations", "children"),
    plugin=True,
    sums=3,  # an M-step weighs a vote and adds it and its square
    agreements=2,  # an E-step squares a deviation and weighs it
)
_ATTENTION = Operator(
    "AttentionRouting",
    (
        Value("pose", (*_MAP, "Pin")),
        Value("parent", (*_GRID, "P"), ones=("N",)),
        Value("weight", WINDOWS.weight),
        Value("scale", ("P",)),
        Value("bias", ("P",)),
    ),
    (Value("pose_out", (*_GRID, "P")),),
    (
        _STRIDES,
        _flag("matrix_pose", 1),
        Attribute("agreement_scale", "float"),
        _epsilon(1e-5),
    ),
    torch="attention_routing",
    layout=WINDOWS,
    routing="attention",
    iteration_values=("couplings", "pose"),
    couplings=True,
    traced=_TRACED,
    freezable=True,
    first_pass="UniformRouting",
    plugin=True,
    sums=2,  # a pass agrees with the parents that it is given, and sums
)
_SELF_ATTENTION = Operator(
    "SelfAttentionRouting",
    (
        Value("u", ("N", "I", "Pin")),
        Value("weight", DENSE.weight),
        Value("bias", ("I", "J")),
    ),
    (Value("v", ("N", "J", "Pout")),),
    (_epsilon(1e-20),),
    torch="self_attention_routing",
    layout=DENSE,
    routing="self-attention",
    iteration_values=("couplings", "pose"),
    couplings=True,
    traced=_TRACED,
    plugin=True,
    sums=3,  # the sum of all votes, the agreements with it, the weighted sum
)
_UNIFORM = Operator(
    "UniformRouting",
    (
        Value("pose", (*_MAP, "Pin")),
        Value("weight", WINDOWS.weight),
        Value("scale", ("P",)),
        Value("bias", ("P",)),
    ),
    (Value("pose_out", (*_GRID, "P")),),
    (_STRIDES, _flag("matrix_pose", 1), _epsilon(1e-5)),
    layout=WINDOWS,
    iteration_values=("pose",),
)
_NORMALIZATION = Operator(
    "PoseNormalization",
    (Value("x", ("...", "P")), Value("scale", ("P",)), Value("bias", ("P",))),
    (Value("y", ("...", "P")),),
    (_epsilon(1e-5),),
    per_element=8,
)
_FAST_CONVOLUTION = Operator(
    "FastConv",
    (
        Value("x", ("N", "C", "H", "W")),
        Value("weight", ("M", "C", "Kh", "Kw")),
        Value("bias", ("M",), optional=True),
    ),
    (Value("y", ("N", "M", "H'", "W'")),),
    (_STRIDES, Attribute("pads", "ints", (0, 0, 0, 0))),
    standard="Conv",
)
_CONVOLUTION = Operator(
    "QuantizedConv",
    (
        Value("x", ("N", "C", "H", "W"), "B"),
        Value("x_scale", (), "f"),
        Value("x_zero_point", (), "B"),
        Value("weight", ("M", "C", "Kh", "Kw"), "b"),
        Value("weight_scale", ("M",), "f"),
        Value("weight_zero_point", ("M",), "b"),
        Value("y_scale", (), "f"),
        Value("y_zero_point", (), "B"),
        Value("bias", ("M",), "i"),
    ),
    (Value("y", ("N", "M", "H'", "W'"), "B"),),
    (
        _STRIDES,
        Attribute("pads", "ints", (0, 0, 0, 0)),
        Attribute("dilations", "ints", (1, 1), positive=True),
    ),
)
_FLOAT = (
    _SQUASH,
    _DYNAMIC,
    _VOTES,
    _EM,
    _ATTENTION,
    _SELF_ATTENTION,
    _UNIFORM,
    _NORMALIZATION,
    _FAST_CONVOLUTION,
)


def _quantized(o: Operator) -> Operator:
    """The operator with INT8 weights, whose scale is an input behind them; no first pass, no plugin."""
    place = o.weight
    assert o.layout is not None
    weight = (
        Value("weight", o.layout.weight, "b", ones=o.inputs[place].ones),
        Value("weight_scale", o.layout.scale, "f"),
    )
    return replace(
        o,
        name=o.int8,
        inputs=(*o.inputs[:place], *weight, *o.inputs[place + 1 :]),
        torch="",
        traced=(),
        freezable=False,
        first_pass="",
        plugin=False,
        quantizes=o.name,
    )


OPERATORS = {o.name: o for o in (*_FLOAT, *(_quantized(o) for o in _FLOAT if o.int8), _CONVOLUTION)}
ROUTING_OPERATORS = {name: o for name, o in OPERATORS.items() if o.routes}


# --- Operator names in a file: one for each function body ---

VERSION = 1  # version of the domain
PLUGIN_VERSION = "1"  # version of the TensorRT plugins, whose namespace is the domain
MAX_INSTANCES = 256  # names per operator that have a kernel; further ones run as function bodies
# Session options that the operator library reads: how many names of each operator have CPU kernels; or the
# names that have CUDA kernels, and the file of the GPU's code.
INSTANCES_KEY = "capsedge.instances"
CUDA_OPERATORS_KEY = "capsedge.cuda.operators"
CUDA_KERNELS_KEY = "capsedge.cuda.kernels"

_NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9]*)_([2-9]|[1-9][0-9]{1,5})")


def instance_name(operator: str, number: int) -> str:
    """The name of an operator's body, counted from 1."""
    return operator if number == 1 else f"{operator}_{number}"


def split_instance_name(name: str) -> tuple[str, int]:
    """Operator and number of a node's type; the type itself and 1 if it is not a numbered operator."""
    match = _NUMBERED.fullmatch(name)
    if match is None or match[1] not in OPERATORS:
        return name, 1
    return match[1], int(match[2])


def operator_of(name: str) -> str:
    """The operator that a node's type names."""
    return split_instance_name(name)[0]


def instance_counts(names: Iterable[str]) -> str:
    """The operators that need kernels, with counts: ``DynamicRouting:2,Squash:1``."""
    most: dict[str, int] = {}
    for name in names:
        operator, number = split_instance_name(name)
        if operator in OPERATORS:
            most[operator] = max(most.get(operator, 1), min(number, MAX_INSTANCES))
    return ",".join(f"{operator}:{most[operator]}" for operator in sorted(most))


# --- Names of iteration values ---

_INNER = re.compile(r"iter(?P<iteration>\d{1,6})_(?P<kind>[a-z]+)")


class IterationValue(NamedTuple):
    """A value of a routing iteration, by its name.

    Attributes:
        operator: the operator whose body contains it.
        iteration: number of the iteration, from 1.
        kind: one of the operator's ``iteration_values``.
    """

    operator: str
    iteration: int
    kind: str


def iteration_value_name(iteration: int, kind: str) -> str:
    """The name of a value in a body, without the operator."""
    return f"iter{iteration}_{kind}"


def iteration_value_in(operator: str, value: str) -> IterationValue | None:
    """What a value of an operator's body is, by its name without the operator; None if of no iteration."""
    spec, match = ROUTING_OPERATORS.get(operator), _INNER.match(value)
    if spec is None or match is None or match["kind"] not in spec.iteration_values:
        return None
    return IterationValue(operator, int(match["iteration"]), match["kind"])


def parse_iteration_value(name: str) -> IterationValue | None:
    """What a value of a graph of standard operators is, by its full name; None if of no iteration.

    Bodies with INT8 weights are not examined: they are judged by their decisions, not by iterations.
    """
    operator, _, value = name.partition("_")
    value_of_iteration = iteration_value_in(operator, value)
    return (
        None
        if value_of_iteration is None or ROUTING_OPERATORS[operator].quantizes
        else value_of_iteration
    )
