"""What a file states of inputs that are indices: the property ``capsedge_inputs``.

``export`` writes it for networks that look up embeddings: ``{"hist": {"entries": 2000}}``. ONNX takes -1 for
the last entry and a runtime on a GPU checks nothing, so indices are checked before a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files.json_documents import Malformed, decode, dump, parse
from capsedge.spec.fields import INPUTS_KEY

# ONNX Runtime's words for an index that a table does not have.
_BEYOND = re.compile(
    r"indices element out of data bounds, idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]"
)


@dataclass(frozen=True)
class IndexInput:
    """An input of whole numbers that look something up.

    Attributes:
        entries: of the smallest table that they look up; they are at least 0 and below this.
    """

    entries: int


def index_property(entries: Mapping[str, int]) -> dict[str, str]:
    """The property of a file whose inputs look up tables of so many entries; none where there are none."""
    if not entries:
        return {}
    return {INPUTS_KEY: dump({name: {"entries": count} for name, count in entries.items()})}


def read_index_property(properties: Mapping[str, str]) -> dict[str, int]:
    """The entries of the table of each input that a file states.

    Raises:
        ArtefactError: the property is damaged.
    """
    text = properties.get(INPUTS_KEY)
    if text is None:
        return {}
    try:
        found = decode(dict[str, IndexInput], parse(text), INPUTS_KEY)
        wrong = [name for name, each in found.items() if each.entries < 1]
        if wrong:
            raise Malformed(f"the table of '{wrong[0][:80]}' has {found[wrong[0]].entries} entries")
    except Malformed as error:
        raise ArtefactError(
            f"The file's property {INPUTS_KEY} cannot be read.",
            f"{error}.",
            "Export the model again with `capsedge export`.",
        ) from error
    return {name: each.entries for name, each in found.items()}


def check_indices(name: str, array: NDArray[Any], entries: int) -> None:
    """Refuse indices that a table of so many entries does not have.

    Raises:
        UsageError: there are some.
    """
    if not array.size:
        return
    # Seen as unsigned, a negative number is a large one: one pass for both ends.
    if int(array.view(f"u{array.itemsize}").max()) < entries:
        return
    wrong = np.argwhere((array < 0) | (array >= entries))
    at = tuple(int(k) for k in wrong[0])
    raise _beyond(name, f"{array[at]} at {list(at)}", len(wrong), entries)


def explained(message: str, feeds: Mapping[str, NDArray[Any]]) -> UsageError | None:
    """The error for indices that ONNX Runtime refused; None if its message says something else.

    Args:
        feeds: the inputs; the first of whole numbers with that value is named.
    """
    told = _BEYOND.search(message)
    if told is None:
        return None
    value, entries = int(told[1]), int(told[2]) + 1
    for name, array in feeds.items():
        if array.dtype.kind in "iu" and (array == value).any():
            return _beyond(name, f"{value}", int((array == value).sum()), entries)
    return None


def _beyond(name: str, found: str, count: int, entries: int) -> UsageError:
    return UsageError(
        f"Input '{name}' has an index that its table does not have.",
        f"Found: {found}{f' and {count - 1} more' if count > 1 else ''}; expected: 0 to {entries - 1}.",
        "Give unknown items an index that the network was trained with, such as that of its padding.",
    )
