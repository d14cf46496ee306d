"""Join two networks in one graph: the small one first, the large one on the escalated images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.graph.cleanup import remove_dead_nodes
from capsedge.graph.ir import (
    all_nodes,
    copy_of,
    initializer,
    opset_of,
    rename,
    replace_repeated,
    set_opset,
    value_names,
)
from capsedge.spec.operators import DOMAIN, instance_name, split_instance_name
from capsedge.spec.vocabularies import ESCALATED

LEAST_OPSET = (
    13  # for Greater and GreaterOrEqual, TopK, ScatterND and Compress in the forms used here
)
OPERATOR_OUTPUTS = "cascade_"  # prefix of the names of all tensors and nodes between the networks
_COMPACT, _INDICES = f"{OPERATOR_OUTPUTS}images", f"{OPERATOR_OUTPUTS}indices"


@dataclass(frozen=True)
class EscalationRule:
    """The rule by which images are escalated.

    Attributes:
        margin: escalate if the best score exceeds the second best by less than this; with several labels, if
            a score is closer than this to ``threshold``.
        score: escalate if the best score is below this; None for no such criterion.
        threshold: the score from which one of several labels is given; None if an image has one label.
    """

    margin: float
    score: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class GraphPair:
    """The common properties of two networks' graphs.

    Attributes:
        outputs: the outputs of the cascade, by the large network's names, with the small one's for each.
        scores: the large network's output that decides the class.
        scale, shift: convert the large network's prepared input to the small one's, ``x * scale + shift``, in
            a shape that broadcasts over the input; None if both prepare images alike.
    """

    outputs: Mapping[str, str]
    scores: str
    scale: NDArray[np.float32] | None = None
    shift: NDArray[np.float32] | None = None


def join(
    small: onnx.ModelProto, large: onnx.ModelProto, pair: GraphPair, rule: EscalationRule
) -> onnx.ModelProto:
    """Build one model that runs the large network only on the escalated images.

    The graph: the small network; ``escalated [N]``, which images are escalated; an ``If`` that compacts them,
    runs the large network, and scatters its outputs over the small one's. If no image is escalated, the
    ``If`` passes on the small network's outputs. Images with NaN scores are escalated.

    Args:
        small, large: files of the same opset, at least `LEAST_OPSET`.
    """
    small, large = _with(small, pair.outputs.values()), _with(large, pair.outputs)
    joined = copy_of(large)  # before its tensors are renamed
    images, image_input = joined.graph.input[0], small.graph.input[0].name
    taken = {ESCALATED, images.name, *pair.outputs}
    first = {name: f"{OPERATOR_OUTPUTS}small_{name}" for name in pair.outputs.values()}
    first[image_input] = images.name if pair.scale is None else f"{OPERATOR_OUTPUTS}small_images"
    rename(small.graph, {**_apart(value_names(small.graph), taken), **first})
    taken |= set(value_names(small.graph))
    last = {name: f"{OPERATOR_OUTPUTS}large_{name}" for name in pair.outputs} | {
        images.name: _COMPACT
    }
    rename(large.graph, {**_apart(value_names(large.graph), taken), **last})
    _rename_nodes(large.graph, {n.name for n in all_nodes(small.graph.node)})
    _rename_functions(large, small)
    outputs = [o for o in joined.graph.output if o.name in pair.outputs]
    named = {o.name: first[pair.outputs[o.name]] for o in outputs}
    branch = _large_branch(large.graph, outputs, named, images.name)
    rule_nodes, constants = _escalation(first[pair.outputs[pair.scores]], rule)
    prepared, more = _prepared(images.name, pair)
    choice = helper.make_node(
        "If", [f"{OPERATOR_OUTPUTS}any"], [o.name for o in outputs], name=f"{OPERATOR_OUTPUTS}choice",
        then_branch=branch, else_branch=_small_branch(outputs, named),
    )  # fmt: skip
    graph = joined.graph
    replace_repeated(graph.node, [*prepared, *small.graph.node, *rule_nodes, choice])
    replace_repeated(graph.initializer, [*more, *small.graph.initializer, *constants])
    replace_repeated(graph.sparse_initializer, small.graph.sparse_initializer)
    replace_repeated(graph.value_info, small.graph.value_info)
    replace_repeated(graph.quantization_annotation, small.graph.quantization_annotation)
    batch = _fixed_batch(small) or images.type.tensor_type.shape.dim[0].dim_param or "N"
    replace_repeated(graph.input, [images])
    replace_repeated(graph.output, [*outputs, _mask(ESCALATED)])
    for value in (*graph.input, *graph.output):
        _set_batch(value, batch)
    replace_repeated(joined.functions, [*small.functions, *large.functions])
    joined.ir_version = max(small.ir_version, large.ir_version)
    for item in small.opset_import:
        if item.domain not in {e.domain for e in joined.opset_import}:
            set_opset(joined, item.domain, item.version)
    onnx.checker.check_model(joined)
    return joined


def _with(model: onnx.ModelProto, outputs: Iterable[str]) -> onnx.ModelProto:
    """A copy with these outputs and only what they need."""
    copy, wanted = copy_of(model), set(outputs)
    replace_repeated(copy.graph.output, [o for o in copy.graph.output if o.name in wanted])
    remove_dead_nodes(copy)
    return copy


def _fixed_batch(model: onnx.ModelProto) -> int:
    """The fixed batch of a model; 0 if it is free."""
    return int(model.graph.input[0].type.tensor_type.shape.dim[0].dim_value)


def _set_batch(value: onnx.ValueInfoProto, batch: int | str) -> None:
    first = value.type.tensor_type.shape.dim[0]
    first.Clear()
    if isinstance(batch, int):
        first.dim_value = batch
    else:
        first.dim_param = batch


def _mask(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [None])


def _prepared(images: str, pair: GraphPair) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The input, converted for the small network."""
    if pair.scale is None or pair.shift is None:
        return [], []
    by_channel = {f"{OPERATOR_OUTPUTS}scale": pair.scale, f"{OPERATOR_OUTPUTS}shift": pair.shift}
    nodes = [
        _node("Mul", [images, f"{OPERATOR_OUTPUTS}scale"], f"{OPERATOR_OUTPUTS}scaled_images"),
        _node(
            "Add",
            [f"{OPERATOR_OUTPUTS}scaled_images", f"{OPERATOR_OUTPUTS}shift"],
            f"{OPERATOR_OUTPUTS}small_images",
        ),
    ]
    return nodes, [initializer(n, v) for n, v in by_channel.items()]


def _node(kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node between the networks, named after its first output."""
    name = OPERATOR_OUTPUTS + outputs[0].removeprefix(OPERATOR_OUTPUTS)
    return helper.make_node(kind, inputs, list(outputs), name=name, **attributes)


def _escalation(
    scores: str, rule: EscalationRule
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """``escalated`` from the small network's scores, and whether it is true anywhere."""
    comparison, constants = (_of_one if rule.threshold is None else _of_several)(scores, rule)
    nodes = [
        *comparison,
        _node(
            "GreaterOrEqual",
            [f"{OPERATOR_OUTPUTS}distance", f"{OPERATOR_OUTPUTS}margin"],
            f"{OPERATOR_OUTPUTS}clear",
        ),
        _node(
            "Not",
            [f"{OPERATOR_OUTPUTS}sure" if rule.score is not None else f"{OPERATOR_OUTPUTS}clear"],
            ESCALATED,
        ),
        _node("Cast", [ESCALATED], f"{OPERATOR_OUTPUTS}ones", to=TensorProto.INT64),
        _node("ReduceSum", [f"{OPERATOR_OUTPUTS}ones"], f"{OPERATOR_OUTPUTS}count", keepdims=0),
        _node(
            "Greater",
            [f"{OPERATOR_OUTPUTS}count", f"{OPERATOR_OUTPUTS}none"],
            f"{OPERATOR_OUTPUTS}any",
        ),
    ]
    if rule.score is not None:
        constants["least"] = np.float32(rule.score)
        nodes[-4:-4] = [
            _node(
                "GreaterOrEqual",
                [f"{OPERATOR_OUTPUTS}best", f"{OPERATOR_OUTPUTS}least"],
                f"{OPERATOR_OUTPUTS}strong",
            ),
            _node(
                "And",
                [f"{OPERATOR_OUTPUTS}clear", f"{OPERATOR_OUTPUTS}strong"],
                f"{OPERATOR_OUTPUTS}sure",
            ),
        ]
    constants |= {"margin": np.float32(rule.margin), "none": np.int64(0), "first": np.int64(0)}
    return nodes, [initializer(OPERATOR_OUTPUTS + name, value) for name, value in constants.items()]


_Constants = dict[str, "np.generic | NDArray[Any]"]


def _of_one(scores: str, rule: EscalationRule) -> tuple[list[onnx.NodeProto], _Constants]:
    """The best score, and its distance to the second best."""
    nodes = [
        _node("Cast", [scores], f"{OPERATOR_OUTPUTS}scores", to=TensorProto.FLOAT),
        _node(
            "TopK",
            [f"{OPERATOR_OUTPUTS}scores", f"{OPERATOR_OUTPUTS}two"],
            f"{OPERATOR_OUTPUTS}best_two",
            f"{OPERATOR_OUTPUTS}classes",
            axis=1,
        ),
        _node(
            "Gather",
            [f"{OPERATOR_OUTPUTS}best_two", f"{OPERATOR_OUTPUTS}first"],
            f"{OPERATOR_OUTPUTS}best",
            axis=1,
        ),
        _node(
            "Gather",
            [f"{OPERATOR_OUTPUTS}best_two", f"{OPERATOR_OUTPUTS}second"],
            f"{OPERATOR_OUTPUTS}next",
            axis=1,
        ),
        _node(
            "Sub",
            [f"{OPERATOR_OUTPUTS}best", f"{OPERATOR_OUTPUTS}next"],
            f"{OPERATOR_OUTPUTS}distance",
        ),
    ]
    return nodes, {"two": np.array([2], np.int64), "second": np.int64(1)}


def _of_several(scores: str, rule: EscalationRule) -> tuple[list[onnx.NodeProto], _Constants]:
    """The distance of the nearest score to the threshold."""
    nodes = [
        _node("Cast", [scores], f"{OPERATOR_OUTPUTS}scores", to=TensorProto.FLOAT),
        _node(
            "Sub",
            [f"{OPERATOR_OUTPUTS}scores", f"{OPERATOR_OUTPUTS}threshold"],
            f"{OPERATOR_OUTPUTS}signed",
        ),
        _node("Abs", [f"{OPERATOR_OUTPUTS}signed"], f"{OPERATOR_OUTPUTS}each"),
        _node(
            "TopK",
            [f"{OPERATOR_OUTPUTS}each", f"{OPERATOR_OUTPUTS}one"],
            f"{OPERATOR_OUTPUTS}nearest",
            f"{OPERATOR_OUTPUTS}class",
            axis=1,
            largest=0,
        ),
        _node(
            "Gather",
            [f"{OPERATOR_OUTPUTS}nearest", f"{OPERATOR_OUTPUTS}first"],
            f"{OPERATOR_OUTPUTS}distance",
            axis=1,
        ),
    ]
    return nodes, {"one": np.array([1], np.int64), "threshold": np.float32(rule.threshold)}


def _large_branch(
    graph: onnx.GraphProto,
    outputs: list[onnx.ValueInfoProto],
    named: Mapping[str, str],
    images: str,
) -> onnx.GraphProto:
    """The large network's graph, on the escalated images."""
    branch = onnx.GraphProto()
    branch.CopyFrom(graph)
    branch.name = "escalated"
    del branch.input[:], branch.output[:]
    compact = [
        _node("Compress", [images, ESCALATED], _COMPACT, axis=0),
        _node("NonZero", [ESCALATED], f"{OPERATOR_OUTPUTS}numbers"),
        _node("Transpose", [f"{OPERATOR_OUTPUTS}numbers"], _INDICES, perm=[1, 0]),
    ]
    nodes = [*compact, *graph.node]
    for output in outputs:
        source, result = (
            f"{OPERATOR_OUTPUTS}large_{output.name}",
            _as(output, f"{OPERATOR_OUTPUTS}escalated_{output.name}"),
        )
        nodes.append(_node("ScatterND", [named[output.name], _INDICES, source], result.name))
        branch.output.append(result)
    replace_repeated(branch.node, nodes)
    for value in branch.value_info:  # the number of escalated images differs from the batch
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = f"escalated_{dim.dim_param}"
    return branch


def _small_branch(outputs: list[onnx.ValueInfoProto], named: Mapping[str, str]) -> onnx.GraphProto:
    """The small network's outputs, unchanged."""
    results = [_as(output, f"{OPERATOR_OUTPUTS}short_way_{output.name}") for output in outputs]
    nodes = [
        _node("Identity", [named[o.name]], r.name) for o, r in zip(outputs, results, strict=True)
    ]
    return helper.make_graph(nodes, "short_way", [], results)


def _as(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    copy.type.tensor_type.shape.dim[0].Clear()
    return copy


def _apart(names: list[str], reserved: set[str]) -> dict[str, str]:
    """New names for those that are taken; names that end in a number still do."""
    used, renamed = reserved | set(names), {}
    for name in names:
        if name in reserved or name.startswith(OPERATOR_OUTPUTS):
            ending = name if name[-1].isdigit() else f"{name}__"
            renamed[name] = _free(lambda k, start=ending: f"{start}{k}", used)  # type: ignore[misc]
            used.add(renamed[name])
    return renamed


def _free(named: Callable[[int], str], used: set[str]) -> str:
    number = 2
    while named(number) in used:
        number += 1
    return named(number)


def _rename_nodes(graph: onnx.GraphProto, reserved: set[str]) -> None:
    names = _apart([n.name for n in all_nodes(graph.node) if n.name], reserved)
    for node in all_nodes(graph.node):
        node.name = names.get(node.name, node.name)


def _rename_functions(model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Give the functions of a model names that another model does not use, in place."""
    taken = {(f.domain, f.name) for f in other.functions}
    used = taken | {(f.domain, f.name) for f in model.functions}
    names: dict[tuple[str, str], str] = {}
    for function in model.functions:
        key = (function.domain, function.name)
        if key not in taken or key in names:
            continue
        names[key] = _free_function(key, used)
        used.add((key[0], names[key]))
    bodies = [n for f in model.functions for n in f.node]
    for node in all_nodes([*model.graph.node, *bodies]):
        node.op_type = names.get((node.domain, node.op_type), node.op_type)
    for function in model.functions:
        function.name = names.get((function.domain, function.name), function.name)


def _free_function(key: tuple[str, str], used: set[tuple[str, str]]) -> str:
    domain, name = key
    operator = split_instance_name(name)[0] if domain == DOMAIN else name
    number = 2
    while (domain, instance_name(operator, number)) in used:
        number += 1
    return instance_name(operator, number)


def opset_aligned(
    small: onnx.ModelProto, large: onnx.ModelProto
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Both models at the newer of their opsets, at least `LEAST_OPSET`."""
    newest = max(opset_of(small), opset_of(large), LEAST_OPSET)
    first, second = (
        m if opset_of(m) == newest else onnx.version_converter.convert_version(m, newest)
        for m in (small, large)
    )
    return first, second
