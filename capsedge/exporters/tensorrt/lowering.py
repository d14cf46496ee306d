"""Prepare an ONNX file for TensorRT: batch, length and precision; count the layers by precision.

The parser never sees a model-local function, which TensorRT versions treat differently. *native* uses
standard operators only. *fused* keeps the capsule operators that the plugin library has, marked for its
registry; the others become standard operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper, inliner, numpy_helper

from capsedge.errors import ParityError, UnsupportedModelError, UsageError
from capsedge.graph.bodies import Shape
from capsedge.graph.cleanup import simplify
from capsedge.graph.functions import inline_functions
from capsedge.graph.fusion.free_axes import free_lengths, lengths_of
from capsedge.graph.ir import (
    attributes_of,
    constants_of,
    copy_of,
    keep_signature,
    operator_nodes,
    opset_of,
    replace_repeated,
    set_opset,
    shapes_of,
)
from capsedge.graph.rewrites import without_parents
from capsedge.runtime.backends.engine_layers import EngineLayer, arithmetic_layers
from capsedge.runtime.backends.tensorrt_library import PLUGINS
from capsedge.runtime.metadata.cascade_metadata import CASCADE_KEY
from capsedge.runtime.metadata.table_indices import read_inputs_property
from capsedge.runtime.onnx_file.layer_map import locate, node_name
from capsedge.runtime.onnx_file.structure import GraphStructure, Node, read_structure
from capsedge.spec.limits import runtime_limit
from capsedge.spec.operators import DOMAIN, OPERATORS, PLUGIN_VERSION, operator_of
from capsedge.spec.vocabularies import PRECISIONS

# --- Lowering ---

_INLINED = "capsedge.inlined"
_QUANTIZE = ("QuantizeLinear", "DequantizeLinear")
_NEWEST_OPSET = 20  # the newest that TensorRT 10.3 parses


def native(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in standard operators only, for ``--plugin native``.

    Raises:
        UnsupportedModelError: a capsule operator has no function body.
    """
    check(model)
    try:
        lowered = inline_functions(model) if model.functions else model
    except ValueError as error:
        raise UnsupportedModelError(
            "The model's capsule operators cannot be converted to standard operators.",
            f"{error}.",
            "Export it with bodies: `capsedge export --ops auto`; or build with `--plugin fused`.",
        ) from error
    left = sorted({operator_of(n.op_type) for n in operator_nodes(lowered)})
    if left:
        raise UnsupportedModelError(
            "The model's capsule operators cannot be converted to standard operators.",
            f"There is no function body for {', '.join(left)}.",
            "Export it with bodies: `capsedge export --ops auto`; or build with `--plugin fused`.",
        )
    return _prepared(lowered)


def fused(model: onnx.ModelProto, namespace: str) -> onnx.ModelProto:
    """A copy whose capsule operators are TensorRT plugins.

    Args:
        namespace: the plugins' namespace in the registry.

    Raises:
        UnsupportedModelError: an operator has neither a plugin nor a function body.
    """
    check(model)
    copy = copy_of(model)
    bodies = {(f.name, f.overload): f for f in copy.functions if f.domain == DOMAIN}
    constants = constants_of(copy)
    shapes = shapes_of(copy)
    kept, used = [], []
    for node in operator_nodes(copy):
        body = bodies.get((node.op_type, node.overload))
        operator = operator_of(node.op_type)
        # With parents of zero only one product is left, which needs no plugin.
        if _has_plugin(node, shapes) and not (body and without_parents(node, constants)):
            kept.append(node)
        elif body is None:
            lacks = "a plugin for such inputs" if operator in PLUGINS else "a plugin"
            raise UnsupportedModelError(
                f"The model's {operator} cannot be converted to TensorRT.",
                f"It has neither {lacks} nor a function body.",
                "Export it with bodies: `capsedge export --ops auto`.",
            )
        else:
            node.domain = _INLINED
            used.append(body)
    replace_repeated(copy.functions, [f for f in copy.functions if f.domain != DOMAIN])
    for body in {(f.name, f.overload): f for f in used}.values():
        function = copy.functions.add()
        function.CopyFrom(body)
        function.domain = _INLINED
    for node in kept:
        node.op_type, node.overload = operator_of(node.op_type), ""
        _expand_prior(copy.graph, node, shapes)
    if copy.functions:
        copy.opset_import.append(helper.make_opsetid(_INLINED, 1))
        inlined = inliner.inline_local_functions(copy)
        set_opset(inlined, _INLINED, None)
        keep_signature(inlined, model)
        copy = inlined
    # Values that an inlined body computes from weights become weights for TensorRT.
    folded = simplify(copy)
    keep_signature(folded, model)
    return _prepared(folded, {"plugin_version": PLUGIN_VERSION, "plugin_namespace": namespace})


def _expand_prior(
    graph: onnx.GraphProto, node: onnx.NodeProto, shapes: Mapping[str, Shape]
) -> None:
    """Give every child its own row of a start logit that the children share, as the plugins read it."""
    place = _shared_prior(node, shapes)
    if place is None:
        return
    prior, start = node.input[place], f"{node.output[0]}.prior"
    parents = numpy_helper.from_array(np.array(shapes[prior][1:], np.int64), f"{start}.parents")
    graph.initializer.append(parents)
    made = [
        helper.make_node("Shape", [node.input[0]], [f"{start}.children"], start=1, end=2),
        helper.make_node("Concat", [f"{start}.children", parents.name], [f"{start}.shape"], axis=0),
        helper.make_node("Expand", [prior, f"{start}.shape"], [start]),
    ]
    node.input[place] = start
    at = list(graph.node).index(node)
    for offset, each in enumerate(made):
        graph.node.insert(at + offset, each)


def _shared_prior(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """The place of a prior of one row among the inputs of a node with more children; None if it has none."""
    operator = OPERATORS[operator_of(node.op_type)]
    if "log_prior" not in operator.input_names:
        return None
    place = operator.input_names.index("log_prior")
    children = shapes.get(node.input[0], ())[1:2]
    shared = shapes.get(node.input[place], ())[:1] == (1,) and children not in ((), (1,))
    return place if shared else None


def check_plugin_limits(model: onnx.ModelProto) -> None:
    """Refuse a model that exceeds what the plugins run.

    Raises:
        UnsupportedModelError: one of its operators does.
    """
    most = runtime_limit("cuda", "ITERATIONS")
    shapes = shapes_of(model)
    for node in operator_nodes(model):
        if not _has_plugin(node, shapes):
            continue
        operator = OPERATORS[operator_of(node.op_type)]
        iterations = operator.iterations(attributes_of(node))
        if iterations > most:
            raise UnsupportedModelError(
                f"The TensorRT plugin library cannot run this model's {operator.name}.",
                f"It has {iterations} iterations; the plugins support at most {most}.",
                "Build with `--plugin native`.",
            )


def _prepared(
    model: onnx.ModelProto, namespace: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    """A copy without functions or unused nodes, its plugins marked.

    Constants are folded beforehand (``graph.cleanup``): GraphSurgeon folds with ONNX Runtime, which
    `capsedge build` does not need.

    Args:
        namespace: attributes by which TensorRT's registry finds the plugin of a capsule operator.
    """
    graph = gs.import_onnx(model)
    graph.functions.clear()
    for node in graph.nodes:
        if node.domain == DOMAIN:
            node.attrs.update(namespace or {})
    prepared: onnx.ModelProto = gs.export_onnx(graph.cleanup())
    prepared.metadata_props.extend(model.metadata_props)
    return prepared


def has_plugins(model: onnx.ModelProto) -> bool:
    """Whether the plugin library could run any of the model's operators."""
    shapes = shapes_of(model)
    return any(_has_plugin(node, shapes) for node in operator_nodes(model))


def _has_plugin(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> bool:
    """Whether the plugin library runs this node, by its operator and the shapes of its inputs."""
    operator = OPERATORS.get(operator_of(node.op_type))
    if operator is None:
        return False
    inputs = [shapes.get(name) for name in node.input]
    place = _shared_prior(node, shapes)
    if place is not None:
        inputs[place] = (
            shapes[node.input[0]][1],
            *shapes[node.input[place]][1:],
        )  # `_expand_prior`
    return operator.has_plugin(inputs)


def check(model: onnx.ModelProto) -> None:
    """Refuse models that TensorRT cannot parse before spending minutes on a build.

    Raises:
        UnsupportedModelError: the file was made for another target, is a cascade, or has several free sizes
            besides the batch.
    """
    lengths = [length.name for length in lengths_of(model)]
    if len(lengths) > 1:
        raise UnsupportedModelError(
            "The model's inputs have several free sizes.",
            f"In engines of capsedge, the batch and one length may vary; {', '.join(lengths)} are free.",
            "Export the model with fewer asterisks in `--example`: an axis without one has a fixed size.",
        )
    if any(entry.key == CASCADE_KEY for entry in model.metadata_props):
        raise UnsupportedModelError(
            "TensorRT cannot run a cascade.",
            "The number of images for its large network is known only at run time, inside the "
            "graph, but an engine fixes its shapes in advance.",
            "Build an engine for each of the two networks and run the second on the escalated "
            "images, or run the cascade in ONNX Runtime.",
        )
    operators = {operator_of(n.op_type) for n in operator_nodes(model)}
    foreign = sorted(o for o in operators if o in OPERATORS and OPERATORS[o].in_8_bits)
    if foreign:
        raise _other_target(f"It has {', '.join(foreign)}, which run only on the CPU.")
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
        "The model was quantized for a target other than TensorRT.",
        f"{why} TensorRT accepts INT8 only with zero points of 0.",
        "Quantize it for TensorRT: `capsedge quantize --target tensorrt`.",
    )


def choose_batch(
    model: onnx.ModelProto, asked: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """The batch sizes to build for: those requested, otherwise the file's, otherwise 1.

    Raises:
        UsageError: several are requested and the file is fixed to one.
    """
    fixed = [d.dim_value for d in _batches(model) if d.HasField("dim_value")]
    if asked is None:
        return (int(fixed[0]) if fixed else 1,) * 3
    if fixed and asked[0] != asked[2]:
        raise UsageError(
            f"The model is fixed at batch {fixed[0]}.",
            "An engine for several batch sizes needs a file with a free batch.",
            f"Build with `--batch {fixed[0]}`, or export again without `--batch`.",
        )
    return asked


def choose_length(model: onnx.ModelProto, asked: tuple[int, int, int] | None) -> tuple[int, ...]:
    """The smallest, best and largest length to build for; empty if the file has no free length.

    Without a request these are 1 to the longest that the file states.

    Raises:
        UsageError: the file's length is fixed, it states a shorter one, or nothing states the longest.
    """
    free = free_lengths(model)
    if not free:
        if asked is None:
            return ()
        raise UsageError(
            "The model has no free length.",
            "Except for the batch, its inputs have fixed sizes.",
            "Leave out `--length`, or export again with an asterisk: `--example 'hist:*50:int64'`.",
        )
    stated = read_inputs_property({p.key: p.value for p in model.metadata_props})
    limits = [stated[name].longest[axis : axis + 1] for name, axis in free if name in stated]
    longest = min((size for each in limits for size in each if size), default=0)
    if asked is None and not longest:
        raise UsageError(
            f"Input '{free[0][0]}' has a free length without a maximum.",
            "An engine is built for lengths in a range, and its memory is for the longest.",
            "For example: `--length 1:50:200`, the smallest, the best and the largest.",
        )
    if asked is not None and longest and asked[2] > longest:
        raise UsageError(
            f"The length {asked[2]} is too long for the network.",
            f"The file states at most {longest}.",
            f"For example: `--length 1:{min(asked[1], longest)}:{longest}`.",
        )
    return asked or (1, longest, longest)


def fix_engine_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy with a fixed batch: all shapes are then static, and TensorRT optimizes for them.

    Raises:
        UsageError: the file is fixed to another batch.
    """
    copy = copy_of(model)
    free = {d.dim_param for d in _batches(copy) if not d.HasField("dim_value")}
    for dimension in _batches(copy):
        if dimension.HasField("dim_value") and dimension.dim_value != batch:
            raise UsageError(
                f"The model is fixed at batch {dimension.dim_value}, not {batch}.",
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


# --- Node names by layer, which the layers of an engine report ---


def name_nodes(model: onnx.ModelProto, source: Path) -> None:
    """Name the nodes of a lowered model after the layers of the original file.

    Nodes of files that do not name their layers keep their names.
    """
    running = GraphStructure(nodes=[_node(node) for node in model.graph.node])
    found = locate(read_structure(source), running)
    for number, (node, location) in enumerate(zip(model.graph.node, found, strict=True)):
        if location.group:
            node.name = node_name(location, node.op_type, number)


def _node(node: onnx.NodeProto) -> Node:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return Node(
        op=node.op_type,
        domain=node.domain,
        overload=node.overload,
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes=attributes,
        bodies=(),
    )


# --- Precision: requested, and built by TensorRT ---

# Types that a file of each precision must and may compute in; FP32 is always allowed, as some parts need it.
_NEEDED = {"fp32": {"FP32"}, "fp16": {"FP16"}, "int8": {"INT8"}, "mixed": {"FP16", "INT8"}}
_STRANGE = {"fp32": {"FP16", "BF16", "FP8", "INT8"}, "fp16": {"INT8", "FP8"}}
_COUNTED = {"FP32", "FP16", "BF16", "FP8", "INT8"}


def precision_of_model(model: onnx.ModelProto) -> str:
    """The precision by a graph's types: ``fp32``, ``fp16``, ``int8``, or ``mixed`` for both FP16 and INT8."""
    quantized = any(n.op_type == "DequantizeLinear" for n in model.graph.node)
    types = {t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Cast":
            types |= {a.i for a in node.attribute if a.name == "to"}
    half = bool(types & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
    if quantized:
        return "mixed" if half else "int8"
    return "fp16" if half else "fp32"


def resolve_precision(asked: str | None, model: onnx.ModelProto) -> str:
    """The precision to build, which is always the file's own.

    Args:
        asked: the caller's request; None accepts the file's.

    Raises:
        UsageError: the file has another one.
    """
    found = precision_of_model(model)
    if asked is None or asked == found or (asked == "int8" and found == "mixed"):
        return asked or found
    if asked not in PRECISIONS:
        raise UsageError(
            f"Unknown precision '{asked}'.", "", f"Choose one of: {', '.join(PRECISIONS)}."
        )
    raise UsageError(
        f"The model is {found}, not {asked}.",
        "TensorRT computes in the types of the graph. capsedge converts them before the build, "
        "with calibration images and a comparison.",
        "Export the model again with `capsedge export`."
        if asked == "fp32"
        else f"Convert it first: `capsedge quantize MODEL.onnx --precision {asked} --target tensorrt`.",
    )


def count_by_precision(layers: Iterable[EngineLayer]) -> dict[str, int]:
    """Count the computing layers with data of each floating-point or INT8 type."""
    counts: Counter[str] = Counter()
    for layer in arithmetic_layers(layers):
        counts.update(layer.types & _COUNTED)
    return dict(sorted(counts.items()))


def count_products(layers: Iterable[EngineLayer]) -> dict[str, int]:
    """Count the convolutions and matrix products with inputs of each type."""
    counts: Counter[str] = Counter()
    for layer in layers:
        if layer.is_product:
            counts.update(layer.input_types & _COUNTED)
    return dict(sorted(counts.items()))


def compare(asked: str, layers: Sequence[EngineLayer]) -> None:
    """Check that the engine has the requested precision.

    INT8 requires a convolution or a matrix product with INT8 inputs; a lone quantizer also has INT8 data,
    but computes nothing.

    Raises:
        ParityError: a requested type is missing from the engine, or it has one that was not requested.
    """
    counts, products = count_by_precision(layers), count_products(layers)
    found = {kind for kind in counts if kind != "INT8"} | ({"INT8"} & set(products))
    absent = sorted(_NEEDED[asked] - found)
    extra = sorted(_STRANGE.get(asked, {"FP8"}) & set(counts))
    if not absent and not extra:
        return
    words = [
        "none with INT8 inputs among the convolutions and matrix products"
        if kind == "INT8"
        else f"none with {kind}"
        for kind in absent
    ] + [f"{kind} was not requested" for kind in extra]
    unknown = sum(not layer.types for layer in arithmetic_layers(layers))
    if unknown:
        words.append(f"TensorRT does not report the types of {unknown} layers")
    listed = ", ".join(f"{n} layers with {kind}" for kind, n in counts.items()) or "no layer"
    raise ParityError(
        f"TensorRT did not build the requested precision: {asked}.",
        f"It built {listed}; {'; '.join(words)}.",
        "Check the file's types with `capsedge inspect`, and report this with the version of TensorRT.",
    )
