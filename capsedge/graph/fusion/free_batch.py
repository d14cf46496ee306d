"""Give a graph a free batch size if the results stay the same.

Literals that fix the batch size become free: targets of Reshapes and Expands, slice bounds, repeated rows of
constants. Images that a trace separated and joined again (``x[0], x[1], ...``) become one branch. Only the
structure is considered here; whether the graph computes the same is checked afterwards by running it.
"""

from __future__ import annotations

from typing import Literal

import onnx

from capsedge.errors import UnsupportedModelError
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.batch_axes import BatchFreeing
from capsedge.graph.fusion.batch_axis_rules import RULES
from capsedge.graph.fusion.proof import FREED, Original, all_equal, prove
from capsedge.graph.fusion.values import Values
from capsedge.graph.ir import copy_of

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
    if not all_equal(comparisons):
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
