"""The steps of `check`, which run in its process: sort, onnx's check, sizes, ONNX Runtime."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import onnx
from onnx import helper, inliner, numpy_helper

from capsedge.errors import ArtefactError, UnsupportedModelError
from capsedge.graph import ir
from capsedge.graph.bodies import Shape
from capsedge.graph.check_operators import operator_problem
from capsedge.graph.functions import attach_functions
from capsedge.graph.ir import Graph, inner_graphs, reads
from capsedge.graph.random_nodes import refuse_random
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.backends.onnxruntime_session import keep_to_itself
from capsedge.runtime.files.text import printable
from capsedge.runtime.onnx_file.stored_values import refuse_not_finite
from capsedge.runtime.onnx_file.structure import Cyclic, sorted_nodes
from capsedge.runtime.onnx_file.summary import summarize
from capsedge.runtime.onnx_file.training_mode import refuse_training
from capsedge.spec import limits, onnx_wire
from capsedge.spec.operators import DOMAIN

_ONNX = "ai.onnx"  # another name of the standard domain


@dataclass(frozen=True)
class Bounds:
    """How much a file may compute.

    Attributes:
        batch: images, where the file leaves their number free.
        values: the most elements of one value.
        total: the most elements of all values.
        bodies: whether the bodies of capsule operators will run, so that their values count.
    """

    batch: int = 1
    values: int = limits.COMPUTED_VALUES
    total: int = limits.COMPUTED_SUM
    bodies: bool = True


ONE_IMAGE = Bounds()
_LARGE = 1 << 16  # elements of a tensor whose values do not matter to shapes
_BITS = {number: bits for number, (_, bits) in onnx_wire.ELEMENT_TYPES.items()}
_AGAIN = "Export it again; `capsedge inspect` shows what is in it."
# ONNX Runtime's words for a file that is only too new for it.
_TOO_NEW = ("Unsupported model IR version", "is under development", "NOT_IMPLEMENTED")


def run_check_steps(data: bytes, name: str, bounds: Bounds) -> bytes:
    """Check a file; returns it with its nodes sorted, or nothing if they are in order already.

    Raises:
        ArtefactError, UnsupportedModelError: as ``check.checked``.
    """
    model = _parsed(data, name)
    moved = _name_standard_domain(model) | _sort(model, name)
    _check_functions(model, name)
    _check_tensors(model, name)
    refuse_not_finite(data, name)
    refuse_training(data, summarize(data, name), name)
    refuse_random(model, name)
    _check_operators(model, name, {})  # before bodies are written by their attributes
    better = bytes(model.SerializeToString()) if moved else b""
    stored = _drop_weights(model)
    whole = _with_bodies(model)
    _name_nodes(whole.graph)
    _check_whole(whole, name)
    _check_operators(whole, name, ir.shapes_of(onnx.shape_inference.infer_shapes(whole)))
    _check_sizes(whole, name, bounds, stored)
    _load(whole, name)
    return better


# --- Order ---


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own error class differs between its versions
        raise ArtefactError(
            f"{name} cannot be read.", f"{error}.", "Export it again with `capsedge export`."
        ) from error


def _name_standard_domain(model: onnx.ModelProto) -> bool:
    """Write the standard domain as the empty text, not as ``ai.onnx``; returns whether it was."""
    changed = False
    for holder in (model, *model.functions):
        imports = list(holder.opset_import)
        named = [e for e in imports if e.domain == _ONNX]
        if named and any(not e.domain for e in imports):
            ir.replace_repeated(holder.opset_import, [e for e in imports if e not in named])
        for each in named:
            each.domain = ""
        changed |= bool(named)
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in ir.all_nodes(nodes):
            if node.domain == _ONNX:
                node.domain = ""
                changed = True
    return changed


def _sort(model: onnx.ModelProto, name: str) -> bool:
    """Sort the nodes of all graphs and functions; returns whether one was out of its place."""
    graph = model.graph
    given = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    given |= {t.values.name for t in graph.sparse_initializer}
    moved = _sort_nodes(graph.node, given, name)
    known = given | Graph.of(graph).produced
    for output in graph.output:
        if output.name not in known:
            _refuse(
                name, f"Its output '{printable(output.name)}' is computed by no node of the file."
            )
    for function in model.functions:
        moved |= _sort_nodes(function.node, set(function.input), name)
    return moved


def _sort_nodes(nodes: Iterable[onnx.NodeProto], given: set[str], name: str) -> bool:
    field, nodes = nodes, list(nodes)
    made = [set(filter(None, node.output)) for node in nodes]
    known = given.union(*made)
    read = [set(reads(node)) for node in nodes]
    for node, names in zip(nodes, read, strict=True):
        unknown = sorted(names - known)
        if unknown:
            _refuse(
                name,
                f"The node {_label(node)} reads '{printable(unknown[0])}', which nothing computes.",
            )
    try:
        order = sorted_nodes(read, made)
    except Cyclic as error:
        _refuse(name, f"The node {_label(nodes[error.nodes[0]])} waits for its own result.")
    moved = order != list(range(len(nodes)))
    for node in nodes:
        for graph in inner_graphs(node):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            moved |= _sort_nodes(graph.node, known | own, name)
    if moved:
        ir.replace_repeated(field, [_copied(nodes[k]) for k in order])
    return moved


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy that shares nothing with the node."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _label(node: onnx.NodeProto) -> str:
    name = node.name or next(filter(None, node.output), "")
    return f"'{printable(name)}' ({printable(node.op_type)})"


def _refuse(name: str, why: str) -> NoReturn:
    raise ArtefactError(f"{name} is not a valid ONNX file.", why, _AGAIN)


# --- Functions and tensors ---


def _check_functions(model: onnx.ModelProto, name: str) -> None:
    """Refuse functions that call themselves, or that have too many nodes once every call is written out."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    counts: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[onnx.NodeProto], outer: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in outer:
                _refuse(name, f"Its function '{printable(node.op_type)}' calls itself.")
            if key in functions and key not in counts:
                counts[key] = count(functions[key].node, (*outer, key))
            total += counts.get(key, 1)
            total += sum(count(graph.node, outer) for graph in inner_graphs(node))
        return total

    found = count(model.graph.node, ())
    if found > limits.GRAPH_NODES:
        raise UnsupportedModelError(
            f"{name} has too many nodes.",
            f"With its functions written out it has {found:,}; the limit is {limits.GRAPH_NODES:,}.",
            "Export a smaller network.",
        )


def _check_tensors(model: onnx.ModelProto, name: str) -> None:
    """Refuse stored data that is not as long as its sizes say."""
    tensors = list(model.graph.initializer)
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while nodes:
        node = nodes.pop()
        for attribute in node.attribute:
            tensors += [attribute.t] if attribute.HasField("t") else attribute.tensors
        for graph in inner_graphs(node):
            tensors += graph.initializer
            nodes += graph.node
    for tensor in tensors:
        if any(size < 0 for size in tensor.dims):
            _refuse(name, f"Its tensor '{printable(tensor.name)}' has a negative size.")
        bits = _BITS.get(tensor.data_type, 0)
        if bits and len(tensor.raw_data) == (math.prod(tensor.dims) * bits + 7) // 8:
            continue
        try:
            numpy_helper.to_array(tensor)
        except Exception as error:  # of many kinds, none of them ours
            _refuse(name, f"Its tensor '{printable(tensor.name)}' is damaged: {_message(error)}")


def _drop_weights(model: onnx.ModelProto) -> set[str]:
    """Turn large weights into inputs, since no shape depends on their values; returns all names."""
    graph = model.graph
    given = {v.name for v in graph.input}
    stored = {t.name for t in graph.initializer}
    for number in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[number]
        if tensor.data_type != onnx.TensorProto.INT64 and math.prod(tensor.dims) > _LARGE:
            if tensor.name not in given:
                dims = list(tensor.dims)
                value = helper.make_tensor_value_info(tensor.name, tensor.data_type, dims)
                graph.input.append(value)
            del graph.initializer[number]
    return stored


# --- onnx's check ---


def _with_bodies(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with bodies for capsule operators that have none.

    Without the shape of an input there is no body; onnx and ONNX Runtime then do not know the operator.
    """
    known = {(f.name, f.overload) for f in model.functions if f.domain == DOMAIN}
    bare = [n for n in ir.operator_nodes(model) if (n.op_type, n.overload) not in known]
    if not bare:
        return model
    whole = ir.copy_of(model)
    ir.detach_functions(whole)
    stated = {v.name for v in whole.graph.value_info}
    try:
        inferred = onnx.shape_inference.infer_shapes(whole).graph.value_info
        whole.graph.value_info.extend(v for v in inferred if v.name not in stated)
        attach_functions(whole)
    except Exception:  # of many kinds: a missing opset, wrong ranks, sizes
        return model
    return whole


def _check_operators(model: onnx.ModelProto, name: str, shapes: Mapping[str, Shape]) -> None:
    """Refuse capsule operators that cannot be computed, as far as their shapes are known."""
    for node in ir.operator_nodes(model):
        problem = operator_problem(node, shapes, ir.opset_of(model))
        if problem:
            _refuse(name, f"The node {_label(node)} cannot be computed: {printable(problem)}.")


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Name nodes after what they compute, so that every message names its node."""
    for node in graph.node:
        node.name = node.name or next(filter(None, node.output), "")
        for inner in inner_graphs(node):
            _name_nodes(inner)


def _check_whole(model: onnx.ModelProto, name: str) -> None:
    for value in model.graph.input:
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            _refuse(name, f"Its input '{printable(value.name)}' has no sizes.")
    stated = _with_declared_outputs(model)
    try:
        onnx.checker.check_model(stated, full_check=True)
    except MemoryError:
        raise
    except Exception as error:  # of several kinds, which differ between its versions
        _refuse(name, f"onnx says: {_message(error)}")


def _with_declared_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, with shapes for all outputs: onnx asks for them, ONNX Runtime and most tools do not."""
    bare = [
        o.name
        for o in model.graph.output
        if o.type.HasField("tensor_type") and not o.type.tensor_type.HasField("shape")
    ]
    if not bare:
        return model
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
        found = {o.name: o for o in inferred.graph.output}
    except onnx.shape_inference.InferenceError:  # the check will name it
        found = {}
    copy = ir.copy_of(model)
    for output in copy.graph.output:
        if output.name in bare:
            kind = output.type.tensor_type
            if output.name in found:
                kind.CopyFrom(found[output.name].type.tensor_type)
            kind.shape.SetInParent()  # if onnx cannot infer it either, it compares it with nothing
    return copy


_KINDS = re.compile(r"elem type: \((\d+)\) vs \((\d+)\)")
_SOURCE = re.compile(r"/\S+:\d+ .* was false\. ")  # a line of ONNX Runtime's code
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def _kind(number: str) -> str:
    return onnx_wire.ELEMENT_TYPES.get(int(number), (f"type {number}", 0))[0]


def _message(error: BaseException) -> str:
    """A library's message on one line, without what it repeats."""
    text = " ".join(str(error).split()) or type(error).__name__
    for noise in ("[ShapeInferenceError] ", "[TypeInferenceError] ", "Inference error(s): "):
        text = text.replace(noise, "")
    text = text.partition(" ==> Context:")[0]
    text = _KINDS.sub(lambda m: f"element type: {_kind(m[1])}, stated {_kind(m[2])}", text)
    text = _SOURCE.sub("", _PREFIX.sub("", text))
    return printable(text if len(text) <= 400 else f"{text[:400]} ...")


# --- Sizes ---


def _check_sizes(model: onnx.ModelProto, name: str, bounds: Bounds, stored: set[str]) -> None:
    """Refuse values that are too large, first as far as onnx finds sizes without computing values.

    Args:
        stored: names of the weights.
    """
    light = ir.copy_of(model)
    for value in light.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in stored and len(dims) and not dims[0].HasField("dim_value"):
            dims[0].dim_value = bounds.batch
    for value in (*light.graph.output, *light.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.Clear()
    wanted = [(f.domain, f.name) for f in light.functions if bounds.bodies or f.domain != DOMAIN]
    if wanted:
        light = inliner.inline_selected_functions(light, wanted)
    for computed in (False, True):
        _compare(onnx.shape_inference.infer_shapes(light, data_prop=computed), name, bounds, stored)


def _compare(model: onnx.ModelProto, name: str, bounds: Bounds, stored: set[str]) -> None:
    """Compare the sizes of a graph with inferred shapes, and of the graphs inside it, with the limits."""
    graph = model.graph
    stored = stored | {t.name for t in graph.initializer}
    constant, total, fixed = set(stored), 0, 0
    sizes = _sizes(graph, name)
    weights = sum(math.prod(t.dims) for t in graph.initializer)
    weights += sum(sizes.get(value, 0) for value in stored)  # those that became inputs
    for value, size in sizes.items():
        if size > bounds.values and value not in stored:
            raise _too_large(name, Graph.of(graph).producer(value), value, size, bounds)
        total += size if value not in stored else 0
    for node in graph.node:
        if constant.issuperset(reads(node)):
            constant |= set(node.output)
            fixed += sum(sizes.get(o, 0) for o in node.output)
        for inner in inner_graphs(node):
            part = onnx.shape_inference.infer_shapes(_alone(model, inner), data_prop=True)
            _compare(part, name, bounds, stored)
    arranged = bounds.values + limits.CONSTANT_STEPS * weights
    for found, most, what in (
        (total - fixed, bounds.total, "Its nodes compute"),
        (fixed, arranged, "Nodes that do not depend on its inputs compute"),
    ):
        if found > most:
            raise UnsupportedModelError(
                f"{name} is too large{_for(bounds)}.",
                f"{what} {found:,} numbers in all; the limit is {most:,}.",
                _smaller(bounds),
            )


def _alone(model: onnx.ModelProto, inner: onnx.GraphProto) -> onnx.ModelProto:
    """A graph inside another as a model: what it reads from outside are inputs, or constants."""
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    alone.graph.CopyFrom(inner)
    outer = model.graph
    own = {v.name for v in inner.input} | {t.name for t in inner.initializer}
    stored = {t.name for t in outer.initializer}
    alone.graph.initializer.extend(t for t in outer.initializer if t.name not in own)
    values = (*outer.input, *outer.value_info, *outer.output)
    alone.graph.input.extend(v for v in values if v.name not in own | stored)
    return alone


def _sizes(graph: onnx.GraphProto, name: str) -> dict[str, int]:
    """Elements of every value whose sizes are all known."""
    found: dict[str, int] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        dims = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        if any(size < 0 for size in dims):
            _refuse(name, f"Its value '{printable(value.name)}' has a negative size.")
        if len(dims) > limits.DIMENSIONS:
            _refuse(name, f"Its value '{printable(value.name)}' has {len(dims)} dimensions.")
        if kind.HasField("shape") and len(dims) == len(kind.shape.dim):
            found[value.name] = max(found.get(value.name, 0), math.prod(dims))
    return found


def _for(bounds: Bounds) -> str:
    return f" for batch {bounds.batch:,}" if bounds.batch > 1 else ""


def _smaller(bounds: Bounds) -> str:
    return "Build with a smaller `--batch`." if bounds.batch > 1 else "Export a smaller network."


def _too_large(
    name: str, node: onnx.NodeProto | None, value: str, size: int, bounds: Bounds
) -> UnsupportedModelError:
    where = f"The node {_label(node)} computes" if node is not None else f"'{printable(value)}' has"
    return UnsupportedModelError(
        f"{name} is too large{_for(bounds)}.",
        f"{where} {size:,} numbers; the limit is {bounds.values:,}.",
        _smaller(bounds),
    )


# --- ONNX Runtime ---


def start_onnxruntime() -> None:
    """Load a tiny model, so that ONNX Runtime has opened all files that it needs.

    Raises:
        EnvironmentProblem: it is too old, or cannot be imported.
    """
    port = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [port], [out])
    _session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))


def _session(model: onnx.ModelProto) -> None:
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a fork starts none
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    keep_to_itself(options)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _load(model: onnx.ModelProto, name: str) -> None:
    """Have ONNX Runtime load the file, if it is installed; what it lacks itself is no fault of the file."""
    known = {(f.name, f.overload) for f in model.functions if f.domain == DOMAIN}
    bare = any((n.op_type, n.overload) not in known for n in ir.operator_nodes(model))
    if "onnxruntime" not in sys.modules or bare:
        return
    try:
        _session(model)
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no common public base
        if not any(words in str(error) for words in _TOO_NEW):
            _refuse(name, f"ONNX Runtime says: {_message(error)}")
