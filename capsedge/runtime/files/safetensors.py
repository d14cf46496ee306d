"""Read the header of a safetensors file, and the metadata of a checkpoint.

The header is checked here before the library ``safetensors``, which accepts headers of up to 100 MB,
sees the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from capsedge.errors import ArtefactError
from capsedge.runtime.files.documents import MalformedJson, decode, parse
from capsedge.runtime.files.reading import file_size, open_regular_file
from capsedge.spec import limits

# --- The header (https://huggingface.co/docs/safetensors): tensors and their offsets ---

_METADATA = "__metadata__"
_LENGTH_BYTES = 8
# Element types: their names elsewhere, and their bytes.
TYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1),
    "BOOL": ("bool", 1), "F8_E4M3": ("float8_e4m3", 1), "F8_E5M2": ("float8_e5m2", 1),
    "C64": ("complex64", 8),
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file.

    Attributes:
        dtype: one of TYPES.
        shape: its sizes.
        data_offsets: first byte and the byte after the last, counted from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    def __post_init__(self) -> None:
        begin, end = self.data_offsets
        if self.dtype not in TYPES:
            raise ValueError(f"unknown type '{self.dtype[:40]}'")
        if min((0, *self.shape)) < 0 or not 0 <= begin <= end:
            raise ValueError("a size or an offset is below 0")
        if self.elements * TYPES[self.dtype][1] != end - begin:
            raise ValueError(
                f"{end - begin:,} bytes for {self.elements:,} elements of {self.dtype}"
            )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """The content of the header.

    Attributes:
        metadata: strings by key.
        tensors: tensors by name.
    """

    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]


def read_header(file: BufferedReader) -> Header:
    """Read and check the header of an open file."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    room = file_size(file) - _LENGTH_BYTES
    if length > room:
        raise MalformedJson(f"its header claims {length:,} bytes, {max(room, 0):,} follow")
    if length > limits.JSON_BYTES:
        raise MalformedJson(f"its header has {length:,} bytes, the limit is {limits.JSON_BYTES:,}")
    values: Any = parse(file.read(length))
    if type(values) is not dict:
        raise MalformedJson("its header is not an object")
    if len(values) > limits.TENSORS:
        raise MalformedJson(f"it has {len(values):,} tensors, the limit is {limits.TENSORS:,}")
    metadata = decode(dict[str, str], values.pop(_METADATA, {}), _METADATA)
    tensors = decode(dict[str, StoredTensor], values, "tensors")
    at = 0
    for tensor in sorted(tensors.values(), key=lambda t: t.data_offsets):
        if tensor.data_offsets[0] != at:
            raise MalformedJson("its tensors overlap or leave gaps")
        at = tensor.data_offsets[1]
    if at != room - length:
        raise MalformedJson(f"its tensors have {at:,} bytes, the file has {room - length:,}")
    return Header(metadata, tensors)


# --- Metadata of a checkpoint ---

T = TypeVar("T")


def field(
    kind: type[T], metadata: Mapping[str, str], key: str, most: int = limits.JSON_BYTES
) -> T | None:
    """The value under a key of a checkpoint's metadata; None if there is none.

    Args:
        most: characters that its text may have.
    """
    if key not in metadata:
        return None
    if len(metadata[key]) > most:
        raise MalformedJson(f"'{key}' has over {most} characters")
    return decode(kind, parse(metadata[key]), key)


def field_of(
    kind: type[T],
    path: Path | str,
    key: str,
    lacking: str,
    fix: str,
    most: int = limits.JSON_BYTES,
) -> T | None:
    """The same for a file; None if it is not named ``.safetensors``.

    Args:
        lacking: what the file fails to record if the value is damaged, for the error.
        fix: how to fix it.
    """
    if Path(path).suffix != ".safetensors":
        return None
    try:
        with open_regular_file(path) as file:
            return field(kind, read_header(file).metadata, key, most)
    except MalformedJson as error:
        raise ArtefactError(f"{path} does not record {lacking}.", f"{error}.", fix) from error
