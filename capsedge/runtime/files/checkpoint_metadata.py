"""What a checkpoint says of itself besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from capsedge.errors import ArtefactError
from capsedge.runtime.files import limits
from capsedge.runtime.files.documents import Malformed, decode, parse
from capsedge.runtime.files.opening import opened
from capsedge.runtime.files.safetensors_file import read_header

T = TypeVar("T")


def field(
    kind: type[T], metadata: Mapping[str, str], key: str, most: int = limits.JSON_BYTES
) -> T | None:
    """The value under a key of a checkpoint's metadata; None if there is none.

    Args:
        kind: a dataclass.
        most: characters that its text may have.

    Raises:
        Malformed: it is damaged.
    """
    if key not in metadata:
        return None
    if len(metadata[key]) > most:
        raise Malformed(f"'{key}' has over {most} characters")
    return decode(kind, parse(metadata[key]), key)


def field_of(
    kind: type[T],
    path: Path | str,
    key: str,
    lacking: str,
    fix: str,
    most: int = limits.JSON_BYTES,
) -> T | None:
    """The same of a file; None for one that is not named ``.safetensors``.

    Args:
        lacking: what the file does not tell where the value is damaged, for the error.
        fix: what mends it.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    if Path(path).suffix != ".safetensors":
        return None
    try:
        with opened(path) as file:
            return field(kind, read_header(file).metadata, key, most)
    except Malformed as error:
        raise ArtefactError(f"{path} does not tell {lacking}.", f"{error}.", fix) from error
