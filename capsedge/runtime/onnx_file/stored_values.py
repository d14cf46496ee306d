"""Read the floating-point numbers that an ONNX file stores, and find those that are NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, CapsedgeError
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.files.protobuf import BYTES, MalformedProtobuf
from capsedge.runtime.files.text import printable
from capsedge.runtime.onnx_file.summary import read_model_bytes, summarize
from capsedge.runtime.onnx_file.wire import MODEL, FieldValues, OnnxMessage, Walker, number_of
from capsedge.spec import onnx_wire
from capsedge.spec.operators import DOMAIN

# Inputs behind the first are weights. Elsewhere, an infinite constant is a mask or a bound.
_WEIGHTED = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "BatchNormalization",
    "PRelu",
    "LSTM",
    "GRU",
)
_FLOATS, _HALVES, _DOUBLES = 4, 5, 10  # fields of a tensor; the second holds halves as integers
_SPARSE_VALUES = 1  # field of a SparseTensorProto
_BFLOAT16 = 16
_DTYPES = {1: "<f4", 9: "?", 10: "<f2", 11: "<f8", _BFLOAT16: "<u2"}
_LISTS = {_FLOATS: "<f4", _DOUBLES: "<f8"}


class Stored(NamedTuple):
    """A tensor that a file stores, by the name of the value that it gives."""

    name: str
    values: NDArray[Any]


def stored_numbers(data: bytes) -> Iterator[Stored]:
    """The floats and truth values that a file stores, in subgraphs and functions too.

    Args:
        data: an ONNX file that `summarize` has accepted. Tensors that do not fit their sizes are left out.
    """
    return _read(data).tensors()


def find_not_finite(data: bytes) -> list[NotFinite]:
    """The stored tensors with NaN, and the weights with infinite values.

    Args:
        data: an ONNX file that `summarize` has accepted.
    """
    reader = _read(data)
    problems = (
        not_finite(name, values, infinite=name not in reader.weights)
        for name, values in reader.tensors()
    )
    return [each for each in problems if each is not None]


def refuse_not_finite(data: bytes, name: str) -> None:
    """Refuse an ONNX file whose weights are NaN or infinite, as training that diverges leaves them.

    Args:
        data: an ONNX file that `summarize` has accepted.
    """
    wrong = find_not_finite(data)
    if wrong:
        raise ArtefactError(f"The weights in {name} are not finite.", why_of(wrong), DIVERGED)


def why_of(wrong: list[NotFinite]) -> str:
    """Tensors that are not finite, as the second line of an error."""
    return f"NaN or infinite: {'; '.join(first_few_lines(wrong))}."


def find_not_finite_in(path: Path) -> list[NotFinite]:
    """The same of a file; none if it is an engine, or cannot be read any more."""
    try:
        if is_engine(path):
            return []
        data = read_model_bytes(path)
        summarize(data, str(path))
        return find_not_finite(data)
    except CapsedgeError:
        return []


def _read(data: bytes) -> _StoredReader:
    reader = _StoredReader(data)
    try:
        reader.walk(MODEL, 0, len(data))
    except (MalformedProtobuf, UnicodeDecodeError) as error:
        raise ArtefactError(
            "The file is not a complete ONNX file.",
            f"Read as one, {error}.",
            "Fetch the file again, or export it again with `capsedge export`.",
        ) from error
    return reader


class _StoredReader(Walker):
    """Notes where tensors stand, and which of them are weights of a layer."""

    visited: ClassVar[Mapping[str, frozenset[int]]] = {
        "NodeProto": frozenset(),
        "TensorProto": frozenset(),
    }

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.weights: set[str] = set()
        self._stored: list[tuple[str, FieldValues, tuple[int, int]]] = []
        self._constant: tuple[FieldValues, tuple[int, int]] | None = None

    def take(
        self,
        parent: OnnxMessage,
        message: OnnxMessage,
        number: int,
        fields: FieldValues,
        within: tuple[int, int],
    ) -> None:
        if message.name == "NodeProto":
            self._node(fields, within)
        elif number_of(fields, onnx_wire.TENSOR_TYPE) not in _DTYPES:
            return
        elif parent.name == "AttributeProto":
            self._constant = fields, within  # its node comes next, and names it
        elif parent.name == "GraphProto" or number == _SPARSE_VALUES:
            (name,) = self.text_of(fields, onnx_wire.TENSOR_NAME)
            self._stored.append((name, fields, within))

    def _node(self, fields: FieldValues, within: tuple[int, int]) -> None:
        kind, domain = self.text_of(fields, onnx_wire.NODE_TYPE, onnx_wire.NODE_DOMAIN)
        if kind == "Constant" and self._constant is not None:
            self._stored.append((self.first_text(*within, onnx_wire.NODE_OUTPUT), *self._constant))
        self._constant = None
        if kind in _WEIGHTED or domain == DOMAIN:
            self.weights.update(self.texts(*within, onnx_wire.NODE_INPUT)[0][1:])

    def tensors(self) -> Iterator[Stored]:
        for name, fields, within in self._stored:
            try:
                sizes = self._integers(*within, onnx_wire.TENSOR_SIZES).tolist()
                values = self._values(number_of(fields, onnx_wire.TENSOR_TYPE), fields, within)
                if math.prod(sizes) != values.size:
                    continue
                values = values.reshape(sizes)
            except (
                MalformedProtobuf,
                ValueError,
                OverflowError,
            ):  # whoever runs the file refuses it
                continue
            yield Stored(name, values)

    def _values(self, kind: int, fields: FieldValues, within: tuple[int, int]) -> NDArray[Any]:
        dtype = np.dtype(_DTYPES[kind])
        raw = fields.get(onnx_wire.TENSOR_BYTES)
        if isinstance(raw, tuple):
            whole = (raw[1] - raw[0]) // dtype.itemsize
            values = np.frombuffer(self.data, dtype, whole, raw[0])
        elif field := next((f for f, held in _LISTS.items() if held == dtype.str), 0):
            spans = [(a, b) for n, _, a, b in self.fields(*within) if n == field]
            values = np.frombuffer(b"".join(self.data[a:b] for a, b in spans), dtype)
        else:
            width = f"<u{dtype.itemsize}"
            values = self._integers(*within, _HALVES).astype(width).view(dtype)
        if kind != _BFLOAT16:
            return values
        return (values.astype(np.uint32) << 16).view(np.float32)

    def _integers(self, start: int, end: int, number: int) -> NDArray[np.uint64]:
        """The integers of a repeated field, one by one or packed."""
        parts = [
            _unpacked(self.data[a:b]) if wire == BYTES else np.array([a], np.uint64)
            for field, wire, a, b in self.fields(start, end)
            if field == number
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _unpacked(packed: bytes) -> NDArray[np.uint64]:
    """Integers of any number of bytes each, all but whose last have the highest bit set."""
    read = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(read < 0x80)
    if not len(ends) or ends[-1] != len(read) - 1:
        if len(read):
            raise MalformedProtobuf("a list of numbers ends inside one")
        return np.zeros(0, np.uint64)
    starts = np.append(0, ends[:-1] + 1)
    place = np.arange(len(read)) - np.repeat(starts, ends - starts + 1)
    bits = (read & 0x7F).astype(np.uint64) << (7 * np.minimum(place, 9)).astype(np.uint64)
    return np.add.reduceat(bits, starts)


DIVERGED = (
    "Training diverged: take an earlier checkpoint, or train again with a lower learning rate and an "
    "epsilon below the square root of squash."
)
_LISTED = 5


@dataclass(frozen=True)
class NotFinite:
    """A stored tensor with values that are not finite.

    Attributes:
        name, shape: of the tensor.
        count: how many of its values are not finite.
        first: the position of the first of these.
        value: the first: ``nan``, ``inf`` or ``-inf``.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    first: tuple[int, ...]
    value: str

    def __str__(self) -> str:
        return (
            f"{printable(self.name)} {list(self.shape)}: {self.count} of {math.prod(self.shape)}, "
            f"the first is {self.value} at {list(self.first)}"
        )


def not_finite(name: str, values: NDArray[Any], infinite: bool = False) -> NotFinite | None:
    """A tensor's values that are not finite, or with ``infinite`` only NaN; None if there are none."""
    if not np.issubdtype(values.dtype, np.floating):
        return None
    bad = np.isnan(values) if infinite else ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if not count:
        return None
    first = tuple(int(k) for k in np.unravel_index(int(bad.argmax()), bad.shape))
    return NotFinite(name, values.shape, count, first, f"{float(values[first]):g}")


def first_few_lines(lines: Sequence[object]) -> list[str]:
    """The first lines, and the number of others."""
    more = len(lines) - _LISTED
    return [*map(str, lines[:_LISTED]), *([f"and {more} more"] if more > 0 else [])]
