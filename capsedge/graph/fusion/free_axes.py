"""Give a file free axes: its batch, if the results stay the same, and lengths such as those of histories.

Literals that fix the batch size become free: targets of Reshapes and Expands, slice bounds, repeated rows of
constants. Images that a trace separated and joined again (``x[0], x[1], ...``) become one branch. Only the
structure is considered here; whether the graph computes the same is checked afterwards by running it.

Routing is found by running the graph, which requires fixed sizes. So a file with free lengths is optimized at
two sizes of each, and the results are merged (``graph.merge``). The merged file is then compared at others.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import onnx

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion import FusionReport, NoMatch
from capsedge.graph.fusion.batch_axes import BatchFreeing
from capsedge.graph.fusion.batch_axis_rules import RULES
from capsedge.graph.fusion.proof import (
    FREED,
    IR_VERSION,
    Comparison,
    Original,
    all_within_tolerance,
    prove,
)
from capsedge.graph.fusion.values import Values
from capsedge.graph.ir import copy_of, detach_functions, operator_nodes
from capsedge.graph.merge import FreeAxis, GraphsDiffer, merge, with_names_of
from capsedge.graph.write_shapes import write_shapes

# --- Freeing the batch ---


def free_batch(graph: Values) -> onnx.ModelProto:
    """The graph with a free batch, as far as its structure allows; results have not been compared yet.

    Raises:
        NoMatch: the batch cannot be freed; gives the reason and the node.
    """
    first = ""
    for last in (False, True):
        try:
            return BatchFreeing(graph, last).model(RULES)
        except NoMatch as error:
            first = first or str(error)
    raise NoMatch(first)


# --- Choosing the new file's batch size: free if verified, or as requested ---

_LARGEST = 512  # maximum number of images in a fixed batch


def with_batch(
    model: onnx.ModelProto,
    graph: Values,
    original: Original,
    batch: int | Literal["free", "keep"],
) -> tuple[onnx.ModelProto, Values, list[str]]:
    """The model with the requested batch, its values, and notes on it.

    Raises:
        UnsupportedModelError: the file cannot have the requested batch size.
    """
    notes: list[str] = []
    if batch in ("keep", graph.batch) and not graph.free:
        return model, graph, [_in_name_only(graph)] if graph.has_named_dims else []
    if not graph.free:
        try:
            was = "free in name only" if graph.has_named_dims else f"fixed at {original.batch}"
            model, graph = _freed(graph, original)
            tried = ", ".join(map(str, FREED))
            notes.append(
                f"the batch was {was} and is free now: every image gives the same result alone and "
                f"in batches of {tried}"
            )
        except NoMatch as error:
            if batch != "free":
                raise UnsupportedModelError(
                    f"The batch cannot be {batch}: the file is fixed at {graph.batch}.",
                    f"It cannot be made free: {error}.",
                    "Keep the batch as it is, or export the network again with a free batch.",
                ) from error
            notes += [_in_name_only(graph)] if graph.has_named_dims else []
            notes.append(f"the batch stays fixed at {graph.batch}: {error}")
    if isinstance(batch, int):
        model = pinned(model, batch)
        graph = Values(model)
    return model, graph, notes


def _in_name_only(graph: Values) -> str:
    return (
        "the batch is free in name only: the file does not run at every batch size; it runs at "
        f"{graph.batch}"
    )


def _freed(graph: Values, original: Original) -> tuple[onnx.ModelProto, Values]:
    """The model with a free batch, compared with the original.

    Raises:
        NoMatch: there is none; gives the reason.
    """
    if graph.batch > _LARGEST:
        raise NoMatch(f"more than {_LARGEST} images at once are not tried")
    freed = free_batch(graph)
    values = Values(freed)
    if not values.free:
        raise NoMatch("its nodes run at no other batch size")
    try:
        comparisons = prove(original, freed, values)
    except Exception as error:  # ONNX Runtime's errors have no common public base
        raise NoMatch("its nodes run at no other batch size") from error
    if not all_within_tolerance(comparisons):
        worst = max(comparisons, key=lambda c: c.excess)
        raise NoMatch(
            f"the result for an image would depend on the others, or differ ('{worst.output}', "
            f"{worst.case}: {worst.difference:.2g})"
        )
    return freed, values


def pinned(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy whose free batch is replaced by a number."""
    copy = copy_of(model)
    names = set()
    for value in copy.graph.input:
        first = value.type.tensor_type.shape.dim[0]
        names.add(first.dim_param)
        first.dim_value = batch
    for value in copy.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and dim.dim_param in names:
                dim.dim_value = batch
    del copy.graph.value_info[:]
    return copy


# --- Free lengths ---

# Pairs of sizes to optimize at, one for each length, rarely equal to another size; smaller ones for networks
# with a low maximum.
_MADE_AT = (
    ((11, 13), (17, 19), (23, 29)),
    ((5, 6), (8, 9), (10, 11)),
    ((2, 3), (4, 5), (6, 8)),
)
_CHILDREN = re.compile(r"[0-9]+\b")  # their number, in a report
_VARYING = "a varying number"  # of children, such as two less than a length
_MOST = len(_MADE_AT[0])  # each further length doubles the work
PROVED_AT = (1, 2, 7, 50, 120)  # lengths to compare at, if the file accepts them
TYPICAL = 50  # one of these, at which the file is timed


class NotFree(ValueError):
    """Why a file with a free length cannot be optimized for all lengths."""


@dataclass(frozen=True)
class FreeLength:
    """A free length: the axes that have it.

    Attributes:
        name: the file's, or ``L`` if the axes have none.
        axes: input names and axes.
    """

    name: str
    axes: tuple[tuple[str, int], ...]


def free_lengths(model: onnx.ModelProto) -> list[tuple[str, int]]:
    """The input axes, other than the first, that have no fixed size: input name and axis."""
    return [axis for length in lengths_of(model) for axis in length.axes]


def lengths_of(model: onnx.ModelProto) -> list[FreeLength]:
    """The free lengths in the order of the inputs. Axes of one name, or without any, share a length."""
    stored = {t.name for t in model.graph.initializer}
    axes: dict[str, list[tuple[str, int]]] = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in stored and axis and not dim.HasField("dim_value"):
                axes.setdefault(dim.dim_param, []).append((value.name, axis))
    unnamed = next(x for x in ("L", *(f"L{k + 2}" for k in range(len(axes)))) if x not in axes)
    return [FreeLength(name or unnamed, tuple(where)) for name, where in axes.items()]


def at_length(model: onnx.ModelProto, *sizes: int) -> onnx.ModelProto:
    """A copy in which the free lengths have these sizes; one size is for all of them."""
    copy = copy_of(model)
    lengths = lengths_of(model)
    inputs = {value.name: value.type.tensor_type.shape.dim for value in copy.graph.input}
    for length, size in zip(lengths, sizes * (len(lengths) // len(sizes)), strict=True):
        for name, axis in length.axes:
            inputs[name][axis].dim_value = size
    for output in copy.graph.output:  # shapes are inferred again
        for dim in list(output.type.tensor_type.shape.dim)[1:]:
            if not dim.HasField("dim_value"):
                dim.Clear()
    del copy.graph.value_info[:]
    return copy


def optimized_at_sizes(
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    optimize: Callable[[bytes], tuple[bytes, FusionReport]],
) -> tuple[onnx.ModelProto, FusionReport]:
    """The file for all lengths, not yet verified, and what was fused at the largest sizes.

    Args:
        converted: the source without functions, in the opset that it is optimized in.
        optimize: optimizes a file with fixed lengths.

    Raises:
        NotFree: there are too many lengths, or the results for their sizes do not fit together.
    """
    lengths = lengths_of(source)
    if len(lengths) > _MOST:
        raise NotFree(
            f"{len(lengths)} lengths are free beside the batch: {', '.join(x.name for x in lengths)}. "
            f"Routing is replaced if there are at most {_MOST}: fix the others, or give inputs of the same "
            "length one name"
        )
    why: CapsedgeError | None = None
    for several in _MADE_AT:
        pairs = several[: len(lengths)]
        try:
            made = [
                optimize(at_length(source, *sizes).SerializeToString())
                for sizes in itertools.product(*pairs)
            ]
        except CapsedgeError as error:
            why = error
            continue
        models = [onnx.load_model_from_string(data) for data, _ in made]
        for model in models:
            detach_functions(model)
        try:
            joined = _joined(models, lengths, pairs, converted)
        except GraphsDiffer as error:
            raise NotFree(str(error)) from error
        if operator_nodes(joined):
            joined.ir_version = max(joined.ir_version, IR_VERSION)
            attach_functions(joined)
        write_shapes(joined)
        return joined, named_children(made[0][1], made[-1][1], lengths, pairs)
    raise NotFree(f"it cannot be optimized at a fixed length: {why}")


def _joined(
    models: Sequence[onnx.ModelProto],
    lengths: Sequence[FreeLength],
    pairs: Sequence[tuple[int, int]],
    converted: onnx.ModelProto,
) -> onnx.ModelProto:
    """One file of those for all combinations of the pairs, of which the last varies fastest."""
    if len(lengths) > 1:
        names = " or ".join(length.name for length in lengths)
        models = [models[0], *(with_names_of(models[0], model, names) for model in models[1:])]
    for length, sizes in reversed(list(zip(lengths, pairs, strict=True))):
        free = FreeAxis(length.name, sizes, *length.axes[0])
        models = [
            merge(small, large, free, converted)
            for small, large in zip(models[::2], models[1::2], strict=True)
        ]
    return models[0]


def named_children(
    small: FusionReport,
    large: FusionReport,
    lengths: Sequence[FreeLength],
    pairs: Sequence[tuple[int, int]],
) -> FusionReport:
    """The second report with numbers of children that follow the lengths by name: ``L of 32``, ``L + L2``.

    Args:
        small, large: the reports at the smallest and the largest sizes.
    """
    names: dict[tuple[str, str], str] = {}
    for count in range(len(lengths), 0, -1):  # what fewer lengths explain comes last, and stays
        for chosen in itertools.combinations(range(len(lengths)), count):
            for sign, of in ((" x ", math.prod), (" + ", sum)):
                totals = [str(of(pairs[k][n] for k in chosen)) for n in (0, 1)]
                names[totals[0], totals[1]] = sign.join(lengths[k].name for k in chosen)
    if len(small.fused) != len(large.fused):
        return large
    fused = []
    for a, b in zip(small.fused, large.fused, strict=True):
        found = [_CHILDREN.match(f.parameters.get("children", "")) for f in (a, b)]
        if found[0] and found[1] and found[0][0] != found[1][0]:
            name = names.get((found[0][0], found[1][0]), _VARYING)
            children = name + b.parameters["children"][found[1].end() :]
            b = replace(b, parameters={**b.parameters, "children": children})
        fused.append(b)
    return replace(large, fused=tuple(fused))


def prove_lengths(
    source: onnx.ModelProto, prepared: onnx.ModelProto, model: onnx.ModelProto
) -> tuple[list[Comparison], list[tuple[int, ...]]]:
    """Compare a new file with the original at all tried lengths that it accepts; also return those lengths.

    Args:
        source: the original.
        prepared: the original without functions.
    """
    found: list[Comparison] = []
    lengths = []
    for sizes, graph in _values(prepared):
        original = Original(at_length(source, *sizes).SerializeToString())
        original.batch = 0 if graph.free else graph.batch
        found += [
            replace(c, case=f"{c.case}, length {_in_words(sizes)}")
            for c in prove(original, at_length(model, *sizes), graph)
        ]
        lengths.append(sizes)
    return found, lengths


def free_note(source: onnx.ModelProto, lengths: Sequence[tuple[int, ...]]) -> str:
    """The note that lengths stayed free."""
    compared = f"compared at {', '.join(map(_in_words, lengths))}"
    names = [length.name for length in lengths_of(source)]
    if len(names) == 1:
        return f"the length stays free: {compared}"
    return f"the lengths {', '.join(names[:-1])} and {names[-1]} stay free: {compared}"


def kept_note(source: onnx.ModelProto, lengths: Sequence[tuple[int, ...]], error: Exception) -> str:
    """The note that the nodes stayed, and why: several lengths that cannot differ are in fact one."""
    names = [length.name for length in lengths_of(source)]
    if len(names) == 1:
        return f"the file keeps its free length and its nodes: {error}"
    counts = [len({*sizes} - {1}) for sizes in lengths]  # 1 also fits where it is repeated
    equal = any(n == 1 and 1 not in sizes for n, sizes in zip(counts, lengths, strict=True))
    why = str(error)
    if equal and max(counts) == 1:
        both = f"{', '.join(names[:-1])} and {names[-1]}"
        why = f"it runs only where {both} are equal: give these axes one name"
    return f"the file keeps its free lengths and its nodes: {why}"


def _in_words(sizes: Sequence[int]) -> str:
    """Sizes of the lengths: ``7``, ``7x120``."""
    return "x".join(map(str, sizes))


def _values(prepared: onnx.ModelProto) -> Iterator[tuple[tuple[int, ...], Values]]:
    """The sizes that a file accepts; those that are equal only if no others are accepted."""
    count, tried = len(lengths_of(prepared)), len(PROVED_AT)
    equal = [(size,) * count for size in PROVED_AT]
    # Every length has every size once, beside different sizes of the others.
    different = [tuple(PROVED_AT[(k + 2 * n) % tried] for n in range(count)) for k in range(tried)]
    # Of these, a network that takes no short history has the last one only; so the first is once the longest.
    longest_first = tuple(itertools.islice(itertools.cycle((120, 7, 50)), count))
    different += [longest_first, (TYPICAL,) * count]
    accepted = 0
    for combinations in (equal,) if count == 1 else (different, equal):
        for sizes in combinations if not accepted else ():
            try:
                graph = Values(at_length(prepared, *sizes))
            except NoMatch:
                continue
            accepted += 1
            yield sizes, graph
