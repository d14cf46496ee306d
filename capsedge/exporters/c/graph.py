"""Turn an ONNX file into a program: fix shapes, fold constants and translate every other node."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.c import capsules, convolutions, layer_steps, movement, per_element
from capsedge.exporters.c.program import (
    C_TYPES,
    Buffer,
    CNode,
    Constants,
    Program,
    ProgramValue,
    Translator,
    Untranslatable,
    checked_tensor_bytes,
    constant,
    contiguous_strides,
)
from capsedge.graph import Rewrites, functions, ir
from capsedge.graph.bodies import Shape
from capsedge.graph.ir import Graph
from capsedge.graph.rewrites import write_standard_convolutions
from capsedge.runtime.files.text import printable
from capsedge.spec.operators import DOMAIN, OPERATORS, operator_of

TRANSLATORS: dict[str, Translator] = {
    **per_element.TRANSLATORS,
    **movement.TRANSLATORS,
    **convolutions.TRANSLATORS,
    **layer_steps.TRANSLATORS,
    **capsules.TRANSLATORS,
}
FOLDED = 1 << 24  # largest constant, in elements, that is folded here
_STATING_SIZES = 1024  # most elements of an input that may state sizes
# Operators that onnx's reference computes as whole arrays, in a time bounded by their sizes: not Loop, and
# not pooling, which it does element by element.
_FOLDED_OPERATORS = (
    per_element.TRANSLATORS.keys()
    | movement.TRANSLATORS.keys()
    | layer_steps.TRANSLATORS.keys()
    | {"ArgMax", "ArgMin", "ConstantOfShape", "CumSum", "EyeLike", "Mod", "NonZero", "OneHot"}
    | {"Range", "Size", "Trilu"}
) - {"Resize", "Upsample"}
_BEFORE_RELU = ("Conv", "Gemm")


def prepare(model: onnx.ModelProto, wanted: Collection[str]) -> onnx.ModelProto:
    """A copy whose nodes are standard operators, or operators of capsules with a kernel.

    Args:
        model: a model with a fixed batch.
        wanted: the outputs to keep.
    """
    copy = ir.copy_of(model)
    write_standard_convolutions(copy)
    outputs = [o for o in copy.graph.output if o.name in wanted]
    ir.replace_repeated(copy.graph.output, outputs)
    shapes = ir.shapes_of(onnx.shape_inference.infer_shapes(copy, data_prop=True))
    _prune(copy.graph)
    ir.detach_functions(copy)
    others = False
    for number, node in enumerate(copy.graph.node):
        if node.domain != DOMAIN:
            others = others or node.domain not in ("", "ai.onnx")
            continue
        operator = operator_of(node.op_type)
        inputs = sum(1 for name in node.input if name)
        outputs_of = len(node.output)
        if operator not in OPERATORS:
            raise _refused(node, operator, "an operator of a later version")
        if not capsules.has_kernel(operator, ir.attributes_of(node), inputs, outputs_of) and (
            operator not in TRANSLATORS or operator in capsules.TRANSLATORS
        ):
            spec = OPERATORS[operator]
            more = outputs_of - len(spec.outputs)
            try:
                known = ir.input_shapes(node, shapes)
            except ir.UnknownShapeError as error:
                raise _refused(node, operator, f"There is {error}") from error
            functions.expand(
                copy, node, known, Rewrites(), number,
                couplings=more > 0 and spec.couplings, traced=more > 1,
            )  # fmt: skip
    if copy.functions:
        copy.opset_import.append(helper.make_opsetid(functions._EXPANDED, 1))
        copy = inliner.inline_local_functions(copy)
        _prune(copy.graph)
    return copy


def _prune(graph: onnx.GraphProto) -> None:
    """Remove nodes that do not affect any output."""
    whole = Graph.of(graph)
    ir.replace_repeated(graph.node, [whole.nodes[k] for k in whole.before(whole.outputs)])


def _refused(
    node: onnx.NodeProto, operator: str, why: str, graph: Graph | None = None
) -> UnsupportedModelError:
    """The error for a node.

    Args:
        graph: the node's, to say which outputs would do without it.
    """
    name = node.name or next(iter(node.output), "")
    domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
    return UnsupportedModelError(
        f"The node '{printable(name)}' ({printable(domain + operator)}) cannot be written as C.",
        f"It is {printable(why)}." if why.startswith(("an ", "a ")) else f"{printable(why)}.",
        f"{_without(node, graph)}Run the file with the Python, C or browser runtime instead, or change the "
        "network.",
    )


def _without(node: onnx.NodeProto, graph: Graph | None) -> str:
    """The advice to leave out the outputs that need a node, where others do not need it."""
    if graph is None:
        return ""
    at = graph.position(next(filter(None, node.output), ""))
    wanting = sorted(o for o in graph.outputs if at in graph.before([o]))
    if not 0 < len(wanting) < len(graph.outputs):
        return ""
    names = ", ".join(f"'{printable(o)}'" for o in wanting)
    return (
        f"Only the output{'s' * (len(wanting) > 1)} {names} need{'s' * (len(wanting) == 1)} it: return the "
        "others alone from forward, and export again. "
    )


class Translation:
    """A program made from a prepared model.

    Args:
        model: of `prepare`.
        constants: where arrays go.
        inputs: the C name of each input that the caller passes; empty for a mask of one class, which is made
            from the caller's ``index``.
        prefix: prefix of the names of buffers.
        fast: whether the convolution of a node may be computed in tiles (`fast_conv`).

    Attributes:
        program: the steps.
        outputs: the values of the graph's outputs, by name.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        constants: Constants,
        inputs: Mapping[str, str],
        prefix: str = "",
        fast: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.program = Program(constants, prefix)
        self.program.fast = fast
        self.outputs: dict[str, ProgramValue] = {}
        self._opset = next(
            (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1
        )
        self._shapes = _inferred_shapes(model)
        self._values: dict[str, ProgramValue] = {
            t.name: constant(numpy_helper.to_array(t)) for t in model.graph.initializer
        }
        self.inputs: dict[str, ProgramValue] = {}
        for info in model.graph.input:
            if info.name in self._values:
                continue
            shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name
            if not inputs[info.name]:
                self.inputs[info.name] = self._mask(shape)
                continue
            try:
                size = checked_tensor_bytes(math.prod(shape) * np.dtype(dtype).itemsize)
            except Untranslatable as error:
                raise UnsupportedModelError(
                    "The file cannot be written as C.",
                    f"Its input '{printable(info.name)}' is {error}.",
                    "Build with a smaller --batch, or export it for smaller images.",
                ) from error
            buffer = Buffer(inputs[info.name], size, C_TYPES[dtype], external=True)
            self.inputs[info.name] = ProgramValue(
                shape, dtype, contiguous_strides(shape), buffer=buffer
            )
        self._values.update(self.inputs)
        self._graph = graph = Graph.of(model.graph)
        finals = graph.outputs
        done: set[str] = set()
        for node in model.graph.node:
            if node.output[0] in done:
                continue
            relu = None
            if operator_of(node.op_type) in _BEFORE_RELU and node.output[0] not in finals:
                users = graph.users(node.output[0])
                relu = users[0] if len(users) == 1 and users[0].op_type == "Relu" else None
            if not self._node(node, relu):
                relu = None
            names = [*node.output, *(relu.output if relu is not None else ())]
            done.update(names[len(node.output) :])
            self._check_shapes(node, names)
            for name in finals & set(names):
                self.outputs[name] = self._written(name)
        for name in finals - set(self.outputs):  # an input or a constant
            self.outputs[name] = self._written(name)

    def _mask(self, shape: tuple[int, ...]) -> ProgramValue:
        self.program.begin("index", "OneHot")
        mask = self.program.new(shape)
        head, name = f"int i; for (i = 0; i < {mask.size}; i++)", self.program.pointer(mask)
        self.program.step(f"{{ {head} {name}[i] = i == index ? 1.0f : 0.0f; }}", [], [mask])
        return mask

    def _written(self, name: str) -> ProgramValue:
        """Return an output to the caller, if it was requested."""
        value = self._values.get(name)
        why = "No node computes it" if value is None else ""
        if value is not None and value.dtype != "float32":
            why = f"Its elements are {value.dtype}"
        elif value is not None and not value.size:
            why = "It has no elements"
        if value is None or why:
            raise UnsupportedModelError(
                f"The output '{printable(name)}' cannot be written as C.",
                f"{why}.",
                "Outputs are float32, with at least one element.",
            )
        return value

    def _check_shapes(self, node: onnx.NodeProto, names: Collection[str]) -> None:
        """Refuse a node whose results would have other sizes than in ONNX."""
        for name in names:
            value, wanted = self._values.get(name), self._shapes.get(name)
            if value is None or wanted is None or None in wanted or value.shape == wanted:
                continue
            why = f"It would have the shape {list(value.shape)}, in ONNX it has {list(wanted)}"
            raise _refused(node, node.op_type, why, self._graph)

    def _node(self, node: onnx.NodeProto, relu: onnx.NodeProto | None) -> bool:
        """Translate a node; return whether that includes its ReLU."""
        operator = operator_of(node.op_type) if node.domain == DOMAIN else node.op_type
        if node.domain not in ("", "ai.onnx", DOMAIN):
            raise _refused(node, operator, f"It is of the domain {node.domain}", self._graph)
        attributes = _attributes(node)
        try:
            return self._translated(node, operator, attributes, relu)
        except Untranslatable as error:
            raise _refused(
                node, operator, f"This has no translation: {error}", self._graph
            ) from error

    def _translated(
        self,
        node: onnx.NodeProto,
        operator: str,
        attributes: dict[str, Any],
        relu: onnx.NodeProto | None,
    ) -> bool:
        if operator == "Constant":
            self._values[node.output[0]] = constant(_constant_of(attributes))
            return False
        unknown = [name for name in node.input if name and name not in self._values]
        if unknown:
            raise Untranslatable(f"its input '{unknown[0]}', which nothing computes before")
        inputs = [self._values[name] if name else None for name in node.input]
        if operator == "Shape" and inputs[0] is not None:
            shape = inputs[0].shape[slice(attributes.get("start", 0), attributes.get("end"))]
            self._values[node.output[0]] = constant(np.asarray(shape, np.int64))
            return False
        if (
            operator in _FOLDED_OPERATORS
            and node.domain != DOMAIN
            and all(v is None or v.array is not None for v in inputs)
            and self._folded(node)
        ):
            return False
        translate = TRANSLATORS.get(operator)
        if translate is None:
            raise _refused(node, operator, "an operator that has no translation", self._graph)
        read = CNode(
            node.name or node.output[0],
            operator,
            inputs,
            attributes,
            len(node.output),
            relu is not None,
            self._opset,
        )
        self.program.begin(read.name, operator)
        results = translate(self.program, read)
        names = node.output if relu is None else relu.output
        for name, value in zip(names, results, strict=False):
            self._values[name] = value
        return relu is not None

    def _folded(self, node: onnx.NodeProto) -> bool:
        """Fold a node whose inputs are constants; return whether that was possible."""
        feeds = {name: self._values[name].array for name in node.input if name}
        one = self._alone(node, {name: a for name, a in feeds.items() if a is not None})
        try:
            if _largest_output(one) > FOLDED:  # before anything of that size is computed
                return False
            found = ReferenceEvaluator(one).run(None, feeds)
        except (
            Exception
        ):  # of any kind, from onnx's own implementation: the node is translated instead
            return False
        for name, array in zip([n for n in node.output if n], found, strict=True):
            if np.size(array) > FOLDED:
                return False
            self._values[name] = constant(np.asarray(array))
        return True

    def _alone(self, node: onnx.NodeProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """A model of one node; small inputs have values too, so that the sizes that they state are known."""
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in feeds.items()
            ],
            [helper.make_value_info(n, onnx.TypeProto()) for n in node.output if n],
            [
                numpy_helper.from_array(array, name)
                for name, array in feeds.items()
                if array.size <= _STATING_SIZES
            ],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shapes that ONNX infers, whatever the file states; empty if it infers none.

    It computes scaled sizes in FP64: 6 for 10 * 0.7, where ONNX Runtime, PyTorch and `movement` have 7. For
    pools of ``ceil_mode``, it counts windows that begin in the padding.
    """
    for node in model.graph.node:
        if node.op_type in ("Resize", "Upsample") or ir.attributes_of(node).get("ceil_mode"):
            return {}
    bare = ir.copy_of(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        return ir.shapes_of(onnx.shape_inference.infer_shapes(bare, data_prop=True))
    except onnx.shape_inference.InferenceError:
        return {}


def _largest_output(model: onnx.ModelProto) -> int:
    """Elements of the largest output whose sizes can be inferred."""
    inferred = onnx.shape_inference.infer_shapes(model)
    sizes = [v.type.tensor_type.shape.dim for v in inferred.graph.output]
    return max(
        (
            math.prod(d.dim_value for d in dims)
            for dims in sizes
            if all(d.HasField("dim_value") for d in dims)
        ),
        default=0,
    )


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
    return found


def _constant_of(attributes: Mapping[str, Any]) -> np.ndarray:
    kinds = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    for name, value in attributes.items():
        if name == "value":
            return np.asarray(numpy_helper.to_array(value))
        if name in kinds:
            return np.asarray(value, kinds[name])
        raise Untranslatable(f"a constant as {name}")
    raise Untranslatable("a constant without a value")
