"""What a checkpoint says of itself besides its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from capsedge.errors import ArtefactError
from capsedge.runtime.files.documents import Malformed
from capsedge.runtime.files.opening import opened
from capsedge.runtime.files.safetensors_file import read_header

T = TypeVar("T")


def read_metadata(
    path: Path | str, read: Callable[[Mapping[str, str]], T | None], lacking: str, fix: str
) -> T | None:
    """A statement in the metadata of a checkpoint; None for a file that is not named ``.safetensors``.

    Args:
        read: reads the statement from the metadata; it raises Malformed where that is damaged.
        lacking: what the file does not tell then, for the error.
        fix: what mends it.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    if Path(path).suffix != ".safetensors":
        return None
    try:
        with opened(path) as file:
            return read(read_header(file).metadata)
    except Malformed as error:
        raise ArtefactError(f"{path} does not tell {lacking}.", f"{error}.", fix) from error
