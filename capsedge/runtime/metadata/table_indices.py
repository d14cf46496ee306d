"""Read what a file states about its inputs besides types and shapes: the property ``capsedge_inputs``.

``export`` writes it for networks that index embeddings, whose free axes have a maximum length, or whose
batch is free: ``{"hist": {"entries": 2000, "longest": [0, 50], "independent": true}}``. ONNX takes -1 for the
last entry and a runtime on a GPU checks nothing, so the first two are checked before a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.files.documents import MalformedJson, decode, dump, parse
from capsedge.spec.fields import INPUTS_KEY

# ONNX Runtime's words for an index that a table does not have.
_BEYOND = re.compile(
    r"indices element out of data bounds, idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]"
)


@dataclass(frozen=True)
class InputBounds:
    """The values and lengths that an input allows, and what its rows mean to each other.

    Attributes:
        entries: of the largest table that it indexes; its values are at least 0 and below this. ONNX Runtime
            refuses those above a smaller one. None if it indexes no table.
        longest: the largest size of each axis; 0 if the shape alone decides. Empty if no axis has one.
        independent: whether the result for a row is the same whatever the other rows are.
    """

    entries: int | None = None
    longest: tuple[int, ...] = ()
    independent: bool = False

    def __post_init__(self) -> None:
        if self.entries is None and not any(self.longest) and not self.independent:
            raise ValueError("nothing is stated")
        if self.entries is not None and self.entries < 1:
            raise ValueError(f"a table of {self.entries} entries")
        if min(self.longest, default=0) < 0:
            raise ValueError(f"a longest length of {min(self.longest)}")


def inputs_property(bounds_by_name: Mapping[str, InputBounds]) -> dict[str, str]:
    """The property of a file that states this about its inputs; none if it states nothing."""
    if not bounds_by_name:
        return {}
    documents = {}
    for name, bounds in bounds_by_name.items():
        entries = {} if bounds.entries is None else {"entries": bounds.entries}
        longest = {"longest": list(bounds.longest)} if any(bounds.longest) else {}
        independent = {"independent": True} if bounds.independent else {}
        documents[name] = {**entries, **longest, **independent}
    return {INPUTS_KEY: dump(documents)}


def read_inputs_property(properties: Mapping[str, str]) -> dict[str, InputBounds]:
    """What a file states about its inputs, by name. Raises ArtefactError if the property is damaged."""
    text = properties.get(INPUTS_KEY)
    if text is None:
        return {}
    try:
        return decode(dict[str, InputBounds], parse(text), INPUTS_KEY)
    except MalformedJson as error:
        raise _unreadable(str(error)) from error


def bounded_ports(
    ports: Sequence[Port], bounds_by_name: Mapping[str, InputBounds]
) -> tuple[Port, ...]:
    """The inputs of a file with what it states about them."""
    bounded = []
    for port in ports:
        bounds = bounds_by_name.get(port.name)
        if bounds is None:
            bounded.append(port)
            continue
        if bounds.longest and len(bounds.longest) != len(port.shape):
            axes = f"{len(bounds.longest)} axes of '{port.name[:80]}', which has {len(port.shape)}"
            raise _unreadable(f"lengths of {axes}")
        bounded.append(replace(port, **vars(bounds)))
    return tuple(bounded)


def _unreadable(why: str) -> ArtefactError:
    return ArtefactError(
        f"The file's property {INPUTS_KEY} cannot be read.",
        f"{why}.",
        "Export the model again with `capsedge export`.",
    )


def check_lengths(name: str, shape: Sequence[int], longest: Sequence[int]) -> None:
    """Refuse an input with an axis longer than ``longest`` (0 for any length)."""
    for axis, (size, most) in enumerate(zip(shape, longest, strict=True)):
        if most and size > most:
            raise ShapeError(
                f"Input '{name}' is too long for the network.",
                f"Its shape is {list(shape)}, and axis {axis} has at most {most}.",
                f"Keep the {most} elements that count, such as the last of a history.",
            )


def check_indices(name: str, array: NDArray[Any], entries: int) -> None:
    """Refuse indices beyond a table with this many entries."""
    if not array.size:
        return
    # As unsigned numbers, negative ones are large, so one pass checks both ends.
    if int(array.view(f"u{array.itemsize}").max()) < entries:
        return
    wrong = np.argwhere((array < 0) | (array >= entries))
    at = tuple(int(k) for k in wrong[0])
    raise _beyond(name, f"{array[at]} at {list(at)}", len(wrong), entries)


def refused_index_error(message: str, feeds: Mapping[str, NDArray[Any]]) -> UsageError | None:
    """The error for indices that ONNX Runtime refused; None if its message says something else.

    Args:
        feeds: the inputs; the first of whole numbers with that value is named.
    """
    match = _BEYOND.search(message)
    if match is None:
        return None
    value, entries = int(match[1]), int(match[2]) + 1
    for name, array in feeds.items():
        if array.dtype.kind in "iu" and (array == value).any():
            return _beyond(name, f"{value}", 1, entries)  # elsewhere in the input, it may be right
    return None


def _beyond(name: str, index: str, count: int, entries: int) -> UsageError:
    return UsageError(
        f"Input '{name}' has an index that its table does not have.",
        f"Found: {index}{f' and {count - 1} more' if count > 1 else ''}; expected: 0 to {entries - 1}.",
        "Give unknown items an index that the network was trained with, such as that of its padding.",
    )
