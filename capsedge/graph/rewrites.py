"""Rewrite a graph exactly: first pass, layer normalization, logistic function, convolutions of large windows.

ONNX Runtime's ``Sigmoid`` (measured in 1.19 to 1.31) is 0 below -18, where the logistic function is 1.5e-8,
and has a relative error of 0.2 % at -10. This is harmless when results are added to others of ordinary size,
but a logarithm or quotient of them becomes another number, minus infinity or NaN. Such nodes become

    Sigmoid(x) = exp(min(x, 0)) / (1 + exp(-|x|))               right to FP32's smallest number, at -103
    Log(Sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))            right everywhere

if the result of the node reaches a logarithm or a quotient through products, sums and moves. Up to that
point, a float16 node is computed in FP32, because float16 ends at 6e-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.bodies import Shape
from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.ir import (
    Graph,
    attributes_of,
    constants_of,
    initializer,
    operator_nodes,
    replace_repeated,
    set_opset,
    shapes_of,
    values_of,
)
from capsedge.spec.operators import DOMAIN, OPERATORS, VERSION, operator_of

# --- First pass: parents are zero and couplings equal, so it is linear ---

_VIEWS = ("Expand", "Reshape", "Cast", "Identity", "Unsqueeze", "Transpose")


def replace_uniform_passes(model: onnx.ModelProto) -> int:
    """Replace every node whose parents are zero with its operator's first pass; returns the number.

    Zero parents make all agreements zero and every coupling ``1/M``.
    """
    constants = constants_of(model)
    graph = Graph.of(model.graph)
    replaced = 0
    for node in operator_nodes(model):
        if without_parents(node, constants, graph):
            replaced += 1
            make_uniform(node)
    remove_dead_nodes(model, keep_domain=DOMAIN)
    return replaced


def make_uniform(node: onnx.NodeProto) -> None:
    """Replace a node with its operator's first pass, which has no parents."""
    spec = OPERATORS[operator_of(node.op_type)]
    first = OPERATORS[spec.first_pass]
    inputs = zip(spec.input_names, node.input, strict=True)
    node.op_type = first.name
    replace_repeated(node.input, [given for name, given in inputs if name in first.input_names])
    replace_repeated(node.attribute, [a for a in node.attribute if a.name in first.attribute_names])


def without_parents(
    node: onnx.NodeProto,
    constants: dict[str, onnx.TensorProto],
    graph: Graph | None = None,
) -> bool:
    """Whether a node's operator has a first pass, and the inputs that this lacks are always zero.

    Args:
        constants: constants of the graph, by name.
        graph: the graph, to look through views and fills as well.
    """
    spec = OPERATORS.get(operator_of(node.op_type))
    if spec is None or not spec.first_pass:
        return False
    known = OPERATORS[spec.first_pass].input_names
    parents = [n for name, n in zip(spec.input_names, node.input, strict=True) if name not in known]
    return all(_is_zero(name, constants, graph) for name in parents)


def _is_zero(name: str, constants: dict[str, onnx.TensorProto], graph: Graph | None) -> bool:
    """Whether a tensor is always zero: a constant, a fill, or a view of one."""
    if name in constants:
        return not numpy_helper.to_array(constants[name]).any()
    node = None if graph is None else graph.producer(name)
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        return not node.attribute or not numpy_helper.to_array(node.attribute[0].t).any()
    return node.op_type in _VIEWS and _is_zero(node.input[0], constants, graph)


# --- Layer normalization over poses as one operator, which has a kernel for short rows ---

LONGEST = 64  # elements of a row; for longer rows, ONNX Runtime's own kernel is as fast


def replace_layer_norms(model: onnx.ModelProto) -> int:
    """Replace ``LayerNormalization`` over a short last axis with ``PoseNormalization``; returns the number.

    ONNX Runtime's kernel takes about 0.1 µs per row, however short.
    """
    shapes = shapes_of(model)
    replaced = 0
    for node in model.graph.node:
        if node.op_type != "LayerNormalization" or node.domain or len(node.input) != 3:
            continue
        shape, attributes = shapes.get(node.input[0]), attributes_of(node)
        last = shape[-1] if shape else None
        if (
            last is None
            or last > LONGEST
            or shapes.get(node.input[1]) != (last,)
            or len(node.output) != 1
        ):
            continue
        assert shape is not None
        if attributes.get("axis", -1) not in (-1, len(shape) - 1):
            continue
        epsilon = attributes.get("epsilon", 1e-5)
        node.op_type, node.domain = "PoseNormalization", DOMAIN
        replace_repeated(node.attribute, [helper.make_attribute("epsilon", epsilon)])
        replaced += 1
    if replaced:
        set_opset(model, DOMAIN, VERSION)
    return replaced


# --- Exact forms of ``Sigmoid`` where its relative error matters ---

_MOVES = {
    *(
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
    ),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_PRODUCTS = {"Einsum", "MatMul", "Mul", "Pow", "Sqrt"}
_SUMS = {"Add", "ReduceMean", "ReduceSum", "Sum"}
_QUOTIENTS = {"Div", "Log", "Reciprocal", "ReduceLogSum"}
_WIDE, _HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def write_exact_sigmoids(model: onnx.ModelProto) -> int:
    """Give every ``Sigmoid`` that needs it an exact form, in place; returns the number."""
    if not any(_is_sigmoid(node) for node in model.graph.node):
        return 0
    flow = _Flow(model)
    reached = ((n.output[0], flow.reach(n)) for n in model.graph.node if _is_sigmoid(n))
    chosen = {name: nodes for name, nodes in reached if nodes}
    if chosen:
        _Writer(model, flow, chosen).write()
        remove_dead_nodes(model, DOMAIN)
    return len(chosen)


def _is_sigmoid(node: onnx.NodeProto) -> bool:
    return node.op_type == "Sigmoid" and not node.domain


class _Flow:
    """The uses of Sigmoid results."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = Graph.of(model.graph)
        self.nodes = self.graph.nodes
        self.constants = set(constants_of(model))
        self.types = {n: v.type.tensor_type.elem_type for n, v in values_of(model).items()}
        self.types |= {name: t.data_type for name, t in self.graph.initializers.items()}

    def reach(self, node: onnx.NodeProto) -> list[int]:
        """The nodes from a Sigmoid to logarithms and quotients, in order; empty if it reaches none."""
        if self.types.get(node.input[0]) not in (_WIDE, _HALF):
            return []
        tails, passed, ends = {node.output[0]}, set[int](), set[int]()
        for k, user in enumerate(self.nodes):
            mine = [i for i in user.input if i in tails]
            if not mine:
                continue
            if self._divides(user, mine):
                ends.add(k)
            elif self._carries(user, mine):
                passed.add(k)
                tails.update(user.output)
        return sorted(ends | self._leading(passed, ends))

    def _leading(self, passed: set[int], ends: set[int]) -> set[int]:
        """The nodes passed that lead to an end."""
        found: set[int] = set()
        for k in sorted(passed, reverse=True):
            users = {u for o in self.nodes[k].output for u in self.graph.user_positions(o)}
            if users & (ends | found):
                found.add(k)
        return found

    def _divides(self, node: onnx.NodeProto, mine: list[str]) -> bool:
        """Whether a node takes a logarithm or a quotient of one of its inputs."""
        if node.domain == DOMAIN:
            spec = OPERATORS.get(operator_of(node.op_type))
            # EM routing divides by sums of activations.
            acting = spec is not None and "a" in spec.input_names
            return acting and spec is not None and node.input[spec.input_names.index("a")] in mine
        if node.domain or node.op_type not in _QUOTIENTS:
            return False
        return node.op_type != "Div" or node.input[1] not in self.constants

    def _carries(self, node: onnx.NodeProto, mine: list[str]) -> bool:
        """Whether the relative error of an input carries over to the result."""
        if node.domain:
            return False
        if node.op_type in _MOVES:
            return node.input[0] in mine or node.op_type == "Concat"
        if node.op_type in _SUMS:
            others = [i for i in node.input if i not in mine]
            return all(i in self.constants for i in others)
        if node.op_type in ("MatMul", "Einsum"):  # not the layers of a network
            return not any(i in self.constants for i in node.input)
        return node.op_type in _PRODUCTS or node.op_type == "Div"


class _Writer:
    """The graph with exact forms in it."""

    def __init__(self, model: onnx.ModelProto, flow: _Flow, chosen: dict[str, list[int]]) -> None:
        self.graph, self.flow, self.chosen = model.graph, flow, chosen
        self.region = {
            k
            for name, reached in chosen.items()
            if flow.types[name] == _HALF
            for k in reached
            if flow.nodes[k].domain != DOMAIN
        }
        self.made: list[onnx.NodeProto] = []
        self.stored: dict[str, onnx.TensorProto] = {}
        self.wide: dict[str, str] = {}  # tensors of the region in FP32
        # Tensors that move a Sigmoid's result, with the same move of its logarithm.
        self.logs: dict[str, str] = {}

    def write(self) -> None:
        """Change the graph."""
        for k, node in enumerate(self.flow.nodes):
            if node.output and node.output[0] in self.chosen:
                self._sigmoid(node)
            elif node.op_type == "Log" and not node.domain and node.input[0] in self.logs:
                self._op("Identity", [self.logs[node.input[0]]], node.output[0])
            elif k in self.region:
                self._widened(node)
            else:
                self.made.append(node)
            self._log_of_moved(node)
        replace_repeated(self.graph.node, self.made)
        self.graph.initializer.extend(self.stored.values())

    def _sigmoid(self, node: onnx.NodeProto) -> None:
        """Both forms; unused nodes are removed afterwards."""
        x, y = node.input[0], node.output[0]
        half = self.flow.types[x] == _HALF
        if half:
            x = self._op("Cast", [x], f"{y}/input", to=_WIDE)
        least = self._op("Min", [x, self._number(0)], f"{y}/least")
        size = self._op("Neg", [self._op("Abs", [x], f"{y}/size")], f"{y}/away")
        total = self._op(
            "Add", [self._op("Exp", [size], f"{y}/power"), self._number(1)], f"{y}/sum"
        )
        exact = f"{y}/wide" if half else y
        self._op("Div", [self._op("Exp", [least], f"{y}/top"), total], exact)
        logarithm = self._op("Sub", [least, self._op("Log", [total], f"{y}/log")], f"{y}/logistic")
        self.logs[y] = logarithm
        if half:
            self.wide[y] = exact
            self._op("Cast", [exact], y, to=_HALF)
            self.logs[y] = self._op("Cast", [logarithm], f"{y}/logistic_half", to=_HALF)

    def _log_of_moved(self, node: onnx.NodeProto) -> None:
        """A move of a Sigmoid's result, applied to its logarithm as well."""
        if node.domain or node.op_type not in _MOVES - {"Cast", "Concat", "Pad"}:
            return
        if node.input[0] in self.logs and len(node.output) == 1:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[0], copy.output[0] = self.logs[node.input[0]], f"{node.output[0]}/logistic"
            self.made.append(copy)
            self.logs[node.output[0]] = copy.output[0]

    def _widened(self, node: onnx.NodeProto) -> None:
        """A node of the region in FP32, and its result in float16 for all others."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for k, name in enumerate(node.input):
            if self.flow.types.get(name) == _HALF:
                copy.input[k] = self._wide(name)
        for attribute in copy.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _HALF:
                attribute.i = _WIDE
        casts = []
        for k, name in enumerate(node.output):
            if self.flow.types.get(name) == _HALF:
                copy.output[k] = self.wide[name] = f"{name}/wide"
                casts.append(name)
        self.made.append(copy)
        for name in casts:
            self._op("Cast", [self.wide[name]], name, to=_HALF)

    def _wide(self, name: str) -> str:
        """A float16 tensor in FP32."""
        if name not in self.wide:
            self.wide[name] = self._op("Cast", [name], f"{name}/wide", to=_WIDE)
        return self.wide[name]

    def _number(self, value: int) -> str:
        name = f"exact_sigmoid/{value}"
        self.stored[name] = initializer(name, np.float32(value))
        return name

    def _op(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.made.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output


# --- Convolutions of large windows: FastConv, which has a kernel, and back ---

FAST_CONV = "FastConv"
# Where the kernel gains on ONNX Runtime's own (docs/explanation/kernels.md).
LEAST_WINDOW, MOST_STRIDE = 5, 2
LEAST_CHANNELS = 128  # of the input and of the output
LEAST_MAP = 3  # rows and columns of the output
# Rewritten together with a convolution before it by ONNX Runtime when it loads a file.
_FOLDED = ("BatchNormalization",)


def write_fast_convolutions(model: onnx.ModelProto) -> int:
    """Replace every ``Conv`` that is faster as ``FastConv``, in place; returns the number."""
    shapes, constants = shapes_of(model), constants_of(model)
    graph = Graph.of(model.graph)
    replaced = 0
    for node in model.graph.node:
        if node.op_type != "Conv" or node.domain or not all(node.input):
            continue
        given = attributes_of(node)
        weight = constants.get(node.input[1])
        if weight is None or weight.data_type != TensorProto.FLOAT or not _gains(weight.dims):
            continue
        kept = _kept_attributes(given, weight.dims)
        followed = {user.op_type for user in graph.users(node.output[0])}
        if kept is None or followed & {*_FOLDED} or not _large(shapes.get(node.output[0])):
            continue
        node.op_type, node.domain = FAST_CONV, DOMAIN
        replace_repeated(node.attribute, [helper.make_attribute(k, v) for k, v in kept.items()])
        replaced += 1
    if replaced:
        set_opset(model, DOMAIN, VERSION)
    return replaced


def write_standard_convolutions(model: onnx.ModelProto) -> None:
    """Replace every ``FastConv`` with the ``Conv`` that is its body, in place."""
    spec = OPERATORS[FAST_CONV]
    for node in operator_nodes(model):
        if operator_of(node.op_type) != FAST_CONV:
            continue
        attributes = spec.complete(attributes_of(node))
        for function in list(model.functions):
            if (function.domain, function.name) == (DOMAIN, node.op_type):
                model.functions.remove(function)
        node.op_type, node.domain, node.overload = "Conv", "", ""
        replace_repeated(
            node.attribute, [helper.make_attribute(k, v) for k, v in attributes.items()]
        )
    if not operator_nodes(model):
        set_opset(model, DOMAIN, None)


def _gains(weight: Any) -> bool:
    """Whether a convolution with a weight of this shape is one that the kernel is faster at."""
    return (
        len(weight) == 4 and min(weight[2:]) >= LEAST_WINDOW and min(weight[:2]) >= LEAST_CHANNELS
    )


def _kept_attributes(given: dict[str, Any], weight: Any) -> dict[str, list[int]] | None:
    """The attributes of the operator; None if it lacks what the convolution has."""
    strides, pads = list(given.get("strides", (1, 1))), list(given.get("pads", (0, 0, 0, 0)))
    plain = (
        given.get("group", 1) == 1
        and given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID", "NOTSET", "VALID")
        and set(given.get("dilations", (1, 1))) == {1}
        and max(strides) <= MOST_STRIDE
        and min(pads) >= 0
        and all(pad < weight[2 + k % 2] for k, pad in enumerate(pads))
    )
    return {"strides": strides, "pads": pads} if plain else None


def _large(shape: Shape | None) -> bool:
    """Whether the map of an output is known and not too small."""
    return shape is not None and len(shape) == 4 and min(d or 0 for d in shape[2:]) >= LEAST_MAP
