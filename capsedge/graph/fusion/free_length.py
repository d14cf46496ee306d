"""Optimize a file whose inputs have a free axis besides the batch, such as the length of a history.

Routing is found by running the graph, which requires fixed sizes. So the file is optimized at two lengths,
and the two results are merged (``graph.merge``). The merged file is then compared at other lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx

from capsedge.errors import CapsedgeError
from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion import FusionReport, NoMatch
from capsedge.graph.fusion.proof import IR_VERSION, Comparison, Original, prove
from capsedge.graph.fusion.values import Values
from capsedge.graph.ir import copy_of, detach_functions, operator_nodes
from capsedge.graph.merge import FreeAxis, GraphsDiffer, merge
from capsedge.graph.write_shapes import write_shapes

# Pairs of lengths to optimize at, rarely equal to another size; smaller ones for networks with a low maximum.
_MADE_AT = ((11, 13), (5, 6), (2, 3))
PROVED_AT = (1, 2, 7, 50, 120)  # lengths to compare at, if the file accepts them
TYPICAL = 50  # one of these, at which the file is timed


class NotFree(ValueError):
    """Why a file with a free length cannot be optimized for all lengths."""


def free_lengths(model: onnx.ModelProto) -> list[tuple[str, int]]:
    """The input axes, other than the first, that have no fixed size: input name and axis."""
    stored = {t.name for t in model.graph.initializer}
    return [
        (value.name, axis)
        for value in model.graph.input
        if value.name not in stored
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if axis and not dim.HasField("dim_value")
    ]


def at_length(model: onnx.ModelProto, length: int) -> onnx.ModelProto:
    """A copy in which all free axes have this length."""
    copy = copy_of(model)
    for name, axis in free_lengths(model):
        value = next(v for v in copy.graph.input if v.name == name)
        value.type.tensor_type.shape.dim[axis].dim_value = length
    for output in copy.graph.output:  # shapes are inferred again
        for dim in list(output.type.tensor_type.shape.dim)[1:]:
            if not dim.HasField("dim_value"):
                dim.Clear()
    del copy.graph.value_info[:]
    return copy


def check_one_length(model: onnx.ModelProto) -> str:
    """The name of the only free length; ``L`` if it has no name.

    Raises:
        NotFree: there are several.
    """
    inputs = {v.name: v.type.tensor_type.shape.dim for v in model.graph.input}
    names = {inputs[name][axis].dim_param for name, axis in free_lengths(model)}
    if len(names) > 1:
        raise NotFree(
            f"several axes are free beside the batch: {', '.join(sorted(names))}. Routing is replaced "
            "if there is one: fix the others, or give these inputs one length"
        )
    return names.pop() or "L"


def optimized_at_two(
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    optimize: Callable[[bytes], tuple[bytes, FusionReport]],
) -> tuple[onnx.ModelProto, FusionReport]:
    """The file for all lengths, not yet verified, and what was fused at the larger of the two lengths.

    Args:
        converted: the source without functions, in the opset that it is optimized in.
        optimize: optimizes a file with fixed lengths.

    Raises:
        NotFree: the results for two lengths do not fit together.
    """
    name = check_one_length(source)
    why: CapsedgeError | GraphsDiffer | None = None
    for sizes in _MADE_AT:
        try:
            made = [optimize(at_length(source, n).SerializeToString()) for n in sizes]
        except CapsedgeError as error:
            why = error
            continue
        models = [onnx.load_model_from_string(data) for data, _ in made]
        for model in models:
            detach_functions(model)
        where, axis = free_lengths(source)[0]
        try:
            joined = merge(models[0], models[1], FreeAxis(name, sizes, where, axis), converted)
        except GraphsDiffer as error:
            raise NotFree(str(error)) from error
        if operator_nodes(joined):
            joined.ir_version = max(joined.ir_version, IR_VERSION)
            attach_functions(joined)
        write_shapes(joined)
        return joined, _named(made[1][1], sizes[1], name)
    raise NotFree(f"it cannot be optimized at a fixed length: {why}")


def _named(fusion: FusionReport, size: int, name: str) -> FusionReport:
    """The report with the size of the length replaced by its name: ``L of 32`` children."""

    children = re.compile(rf"{size}\b")
    fused = tuple(
        replace(
            f,
            parameters={
                k: children.sub(name, v, count=1) if k == "children" and children.match(v) else v
                for k, v in f.parameters.items()
            },
        )
        for f in fusion.fused
    )
    return replace(fusion, fused=fused)


def prove_lengths(
    source: onnx.ModelProto, prepared: onnx.ModelProto, model: onnx.ModelProto
) -> tuple[list[Comparison], list[int]]:
    """Compare a new file with the original at every length that it accepts; also return those lengths.

    Args:
        source: the original.
        prepared: the original without functions.
    """
    found: list[Comparison] = []
    lengths = []
    for length, graph in _values(prepared):
        original = Original(at_length(source, length).SerializeToString())
        original.batch = 0 if graph.free else graph.batch
        found += [
            replace(c, case=f"{c.case}, length {length}")
            for c in prove(original, at_length(model, length), graph)
        ]
        lengths.append(length)
    return found, lengths


def _values(prepared: onnx.ModelProto) -> Iterator[tuple[int, Values]]:
    for length in PROVED_AT:
        try:
            yield length, Values(at_length(prepared, length))
        except NoMatch:
            continue
