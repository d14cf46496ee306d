"""What TensorRT's parser gets: never a model-local function, which its versions treat differently.

*native* is standard operators only. *fused* keeps the capsule operators that the plugin library has, marked
for its registry; the others become standard operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_graphsurgeon as gs
from onnx import helper, inliner, numpy_helper

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.graph.first_pass import without_parents
from capsedge.graph.functions import inline_functions
from capsedge.graph.proto import constants_of, copy_of, operator_nodes, opset_of, replace, set_opset
from capsedge.graph.shapes import keep_signature
from capsedge.graph.simplify import simplify
from capsedge.runtime.backends.tensorrt_library import PLUGIN_VERSION, PLUGINS
from capsedge.runtime.cascade import CASCADE_KEY
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS

_INLINED = "capsedge.inlined"
_QUANTIZE = ("QuantizeLinear", "DequantizeLinear")
_NEWEST_OPSET = 20  # the newest that TensorRT 10.3 parses


def native(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in standard operators only.

    Raises:
        UnsupportedModelError: a capsule operator has no function body.
    """
    check(model)
    try:
        lowered = inline_functions(model) if model.functions else model
    except ValueError as error:
        raise UnsupportedModelError(
            "The model's capsule operators cannot become standard operators.",
            f"{error}.",
            "Export it with bodies: `capsedge export --ops auto`; or build with `--plugin fused`.",
        ) from error
    left = sorted({operator_of(n.op_type) for n in operator_nodes(lowered)})
    if left:
        raise UnsupportedModelError(
            "The model's capsule operators cannot become standard operators.",
            f"No function body for {', '.join(left)}.",
            "Export it with bodies: `capsedge export --ops auto`; or build with `--plugin fused`.",
        )
    return _prepared(lowered)


def fused(model: onnx.ModelProto, namespace: str) -> onnx.ModelProto:
    """A copy whose capsule operators are TensorRT plugins.

    Args:
        namespace: under which the registry knows the plugins.

    Raises:
        UnsupportedModelError: an operator has neither a plugin nor a function body.
    """
    check(model)
    copy = copy_of(model)
    bodies = {(f.name, f.overload): f for f in copy.functions if f.domain == DOMAIN}
    constants = constants_of(copy)
    kept, used = [], []
    for node in operator_nodes(copy):
        body = bodies.get((node.op_type, node.overload))
        operator = operator_of(node.op_type)
        # With zero parents only one product is left, which needs no plugin.
        if operator in PLUGINS and not (body and without_parents(node, constants, {})):
            kept.append(node)
        elif body is None:
            raise UnsupportedModelError(
                f"The model's {operator} cannot become TensorRT.",
                "It has neither a plugin nor a function body.",
                "Export it with bodies: `capsedge export --ops auto`.",
            )
        else:
            node.domain = _INLINED
            used.append(body)
    replace(copy.functions, [f for f in copy.functions if f.domain != DOMAIN])
    for body in {(f.name, f.overload): f for f in used}.values():
        function = copy.functions.add()
        function.CopyFrom(body)
        function.domain = _INLINED
    for node in kept:
        node.op_type, node.overload = operator_of(node.op_type), ""
    if copy.functions:
        copy.opset_import.append(helper.make_opsetid(_INLINED, 1))
        inlined = inliner.inline_local_functions(copy)
        set_opset(inlined, _INLINED, None)
        keep_signature(inlined, model)
        copy = inlined
    # What an inlined body computes from weights is a weight for TensorRT.
    folded = simplify(copy)
    keep_signature(folded, model)
    return _prepared(folded, {"plugin_version": PLUGIN_VERSION, "plugin_namespace": namespace})


def _prepared(model: onnx.ModelProto, mark: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """A copy without functions and without what reaches no output, its plugins marked.

    Constants are folded before (``graph.simplify``): GraphSurgeon folds with ONNX Runtime, which
    `capsedge build` does without.

    Args:
        mark: attributes by which TensorRT's registry finds the plugin of a capsule operator.
    """
    graph = gs.import_onnx(model)
    graph.functions.clear()
    for node in graph.nodes:
        if node.domain == DOMAIN:
            node.attrs.update(mark or {})
    prepared: onnx.ModelProto = gs.export_onnx(graph.cleanup())
    prepared.metadata_props.extend(model.metadata_props)
    return prepared


def has_plugins(model: onnx.ModelProto) -> bool:
    """Whether the plugin library could run any of the model's operators."""
    return any(operator_of(node.op_type) in PLUGINS for node in operator_nodes(model))


def check(model: onnx.ModelProto) -> None:
    """Refuse models that TensorRT cannot parse, before minutes are spent.

    Raises:
        UnsupportedModelError: the file was made for another target, or is a cascade.
    """
    if any(entry.key == CASCADE_KEY for entry in model.metadata_props):
        raise UnsupportedModelError(
            "TensorRT cannot run a cascade.",
            "How many images its large network runs on is known only at run time, inside the graph; an "
            "engine fixes its shapes beforehand.",
            "Build an engine of each of the two networks, and run the second on the images in doubt; or run "
            "the cascade in ONNX Runtime.",
        )
    operators = {operator_of(n.op_type) for n in operator_nodes(model)}
    foreign = sorted(o for o in operators if o in OPERATORS and OPERATORS[o].in_8_bits)
    if foreign:
        raise _other_target(f"It has {', '.join(foreign)}, which are kernels for the CPU.")
    if opset_of(model) > _NEWEST_OPSET:
        raise UnsupportedModelError(
            f"The model has opset {opset_of(model)}.",
            f"TensorRT 10.3 parses up to {_NEWEST_OPSET}.",
            "Export it again: `capsedge export --opset 20`.",
        )
    constants = constants_of(model)
    for node in model.graph.node:
        if node.op_type not in _QUANTIZE or len(node.input) < 3 or not node.input[2]:
            continue
        zero = constants.get(node.input[2])
        if zero is None or zero.data_type != onnx.TensorProto.INT8:
            # Biases are kept in INT32 by other tools; TensorRT wants them in floating point.
            raise _other_target(f"The zero point of {node.op_type} '{node.name}' is not INT8.")
        if numpy_helper.to_array(zero).any():
            raise _other_target(f"{node.op_type} '{node.name}' has a zero point other than 0.")


def _other_target(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        "The model was quantized for another target than TensorRT.",
        f"{why} TensorRT accepts INT8 only with the zero point 0.",
        "Quantize it for TensorRT: `capsedge quantize --target tensorrt`.",
    )


def choose_batch(
    model: onnx.ModelProto, asked: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """The batches to build for: those asked for, else the file's own, else 1.

    Raises:
        UsageError: several are asked for and the file is fixed to one.
    """
    fixed = [d.dim_value for d in _batches(model) if d.HasField("dim_value")]
    if asked is None:
        return (int(fixed[0]) if fixed else 1,) * 3
    if fixed and asked[0] != asked[2]:
        raise UsageError(
            f"The model is fixed to batch {fixed[0]}.",
            "An engine for several batches needs a file whose batch is free.",
            f"Build with `--batch {fixed[0]}`, or export again without `--batch`.",
        )
    return asked


def fix_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy whose batch is a number: everything is static then, and TensorRT optimises for it.

    Raises:
        UsageError: the file is fixed to another batch.
    """
    copy = copy_of(model)
    free = {d.dim_param for d in _batches(copy) if not d.HasField("dim_value")}
    for dimension in _batches(copy):
        if dimension.HasField("dim_value") and dimension.dim_value != batch:
            raise UsageError(
                f"The model is fixed to batch {dimension.dim_value}, not {batch}.",
                "It was exported with `--batch`.",
                f"Build with `--batch {dimension.dim_value}`, or export with a free batch.",
            )
    graph = copy.graph
    for value in (*graph.input, *graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param and dimension.dim_param in free:
                dimension.dim_value = batch
    del graph.value_info[:]
    return copy


def _batches(model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
    given = {t.name for t in model.graph.initializer}
    shapes = [v.type.tensor_type.shape for v in model.graph.input if v.name not in given]
    return [shape.dim[0] for shape in shapes if shape.dim]
