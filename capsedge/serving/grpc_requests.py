"""Read a request of the Open Inference Protocol from the bytes of a ModelInferRequest.

Reading takes at most a fixed multiple of the message's size in memory, and no step holds the interpreter for
long. protobuf's own decoder would create an object for every empty submessage before any could be counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.files import protobuf
from capsedge.runtime.files.protobuf import BYTES, FIXED32, FIXED64, VARINT, Wire
from capsedge.serving.request_bodies import (
    InferRequest,
    MalformedRequest,
    RequestedOutput,
    RequestInput,
    bounded_text,
    raw_values,
)
from capsedge.serving.request_tensors import TYPES
from capsedge.spec import limits

_PIECE = 256 * limits.KIB  # bytes of packed numbers read at a time
_TEXT = 64 * limits.KIB  # bytes of one text

# Field numbers of the protocol's InferTensorContents.
_CONTENTS = {1: "bool", 2: "int32", 3: "int64", 4: "uint32", 5: "uint64", 6: "f4", 7: "f8"}
_FIXED = {6: FIXED32, 7: FIXED64}
_BYTES_CONTENTS = 8


def from_grpc(data: bytes) -> tuple[str, str, InferRequest]:
    """The model's name, its version and the request in a ModelInferRequest."""
    try:
        return _RequestReader(data).request()
    except protobuf.MalformedProtobuf as error:
        raise MalformedRequest(str(error)) from error


class _RequestReader:
    """Reads a ModelInferRequest."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._wire = Wire(data, limits.REQUEST_ITEMS)
        self._remaining = limits.REQUEST_VALUES

    def request(self) -> tuple[str, str, InferRequest]:
        texts = {1: "", 2: "", 3: ""}  # name, version, id
        request, raw = InferRequest([]), list[tuple[int, int]]()
        parameters: dict[str, Any] = {}
        for number, a, b in self._wire.messages(0, len(self._data)):
            if number in texts:
                texts[number] = bounded_text(self._text(a, b), "a name")
            elif number == 4:
                self._parameter(a, b, parameters)
            elif number == 5:
                request.inputs.append(self._input(a, b))
            elif number == 6:
                request.outputs.append(self._output(a, b))
            elif number == 7:
                raw.append((a, b))
        request.parameters, request.id, request.raw = parameters, texts[3], bool(raw)
        if raw:
            self._give(request.inputs, raw)
        return texts[1], texts[2], request

    def _input(self, start: int, end: int) -> RequestInput:
        texts, shape, parameters = {1: "", 2: ""}, list[int](), dict[str, Any]()
        contents: dict[int, list[Any]] = {}
        for number, kind, a, b in self._wire.fields(start, end):
            if number == 3 and kind in (VARINT, BYTES):
                if kind == BYTES and b - a > 10 * limits.DIMENSIONS:
                    raise MalformedRequest(f"a shape has over {limits.DIMENSIONS} sizes")
                packed = self._packed(a, b) if kind == BYTES else np.array([a], np.uint64)
                shape += packed.astype(np.int64).tolist()
                if len(shape) > limits.DIMENSIONS:
                    raise MalformedRequest(f"a shape has over {limits.DIMENSIONS} sizes")
            elif kind == BYTES and number in texts:
                texts[number] = bounded_text(self._text(a, b), "a name")
            elif kind == BYTES and number == 4:
                self._parameter(a, b, parameters)
            elif kind == BYTES and number == 5:
                self._contents(a, b, contents)
        if len(contents) > 1:
            raise MalformedRequest(f"the contents of input '{texts[1]}' are of several types")
        return RequestInput(texts[1], texts[2], shape, _data(contents), parameters)

    def _output(self, start: int, end: int) -> RequestedOutput:
        name, parameters = "", dict[str, Any]()
        for number, a, b in self._wire.messages(start, end):
            if number == 1:
                name = bounded_text(self._text(a, b), "a name")
            elif number == 2:
                self._parameter(a, b, parameters)
        return RequestedOutput(name, parameters)

    def _parameter(self, start: int, end: int, into: dict[str, Any]) -> None:
        name, value = "", None
        for number, a, b in self._wire.messages(start, end):
            if number == 1:
                name = bounded_text(self._text(a, b), "a name")
            elif number == 2:
                value = self._value(a, b)
        into[name] = value

    def _value(self, start: int, end: int) -> Any:
        """The value of an InferParameter; the last of its fields counts."""
        value: Any = None
        for number, kind, a, b in self._wire.fields(start, end):
            if (number, kind) == (1, VARINT):
                value = a != 0
            elif (number, kind) == (2, VARINT):
                value = a - (1 << 64) if a >> 63 else a
            elif (number, kind) == (3, BYTES):
                value = self._text(a, b)
            elif (number, kind) == (4, FIXED64):
                value = float(np.frombuffer(self._data, "<f8", 1, a)[0])
            elif (number, kind) == (5, VARINT):
                value = a
        return value

    def _contents(self, start: int, end: int, into: dict[int, list[Any]]) -> None:
        for number, kind, a, b in self._wire.fields(start, end):
            if number == _BYTES_CONTENTS and kind == BYTES:
                into.setdefault(number, []).append(self._data[a:b])
            elif number in _CONTENTS:
                fixed = _FIXED.get(number)
                if kind == BYTES:
                    values = self._numbers(number, a, b)
                elif kind == fixed:
                    values = self._fixed(_CONTENTS[number], a, b)
                elif kind == VARINT and fixed is None:
                    values = _cast(np.array([a], np.uint64), _CONTENTS[number])
                else:
                    continue
                self._count(values.size)
                into.setdefault(number, []).append(values)

    def _numbers(self, number: int, a: int, b: int) -> NDArray[Any]:
        if number in _FIXED:
            return self._fixed(_CONTENTS[number], a, b)
        parts = [np.zeros(0, _CONTENTS[number])]
        counted = 0
        while a < b:
            cut = min(a + _PIECE, b)
            while cut < b and self._data[cut - 1] >= 0x80:
                cut += 1
            parts.append(_cast(self._packed(a, cut), _CONTENTS[number]))
            counted += parts[-1].size
            if counted > self._remaining:
                self._count(counted)
            a = cut
        return np.concatenate(parts)

    def _fixed(self, dtype: str, a: int, b: int) -> NDArray[Any]:
        kind = np.dtype(f"<{dtype}")
        if (b - a) % kind.itemsize:
            raise MalformedRequest("it ends inside a number")
        return np.frombuffer(self._data, kind, (b - a) // kind.itemsize, a).copy()  # aligned

    def _packed(self, a: int, b: int) -> NDArray[np.uint64]:
        """Numbers of 1 to 10 bytes, whose last byte is below 128."""
        read = np.frombuffer(self._data, np.uint8, b - a, a)
        ends = np.flatnonzero(read < 0x80)
        if len(read) and (not len(ends) or ends[-1] != len(read) - 1):
            raise MalformedRequest("it ends inside a number")
        if len(ends) == len(read):
            return read.astype(np.uint64)
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        if lengths.max() > 10:
            raise MalformedRequest("a number does not end")
        numbers = np.zeros(len(ends), np.uint64)
        for place in range(int(lengths.max())):
            there = lengths > place
            bits = (read[starts[there] + place] & 0x7F).astype(np.uint64)
            numbers[there] |= bits << np.uint64(7 * place)
        return numbers

    def _text(self, a: int, b: int) -> str:
        if b - a > _TEXT:
            raise MalformedRequest(f"a text has over {_TEXT:,} bytes")
        try:
            return self._wire.text(a, b)
        except UnicodeDecodeError as error:
            raise MalformedRequest("a text is not UTF-8") from error

    def _count(self, values: int) -> None:
        self._remaining -= values
        if self._remaining < 0:
            raise MalformedRequest(f"its inputs have over {limits.REQUEST_VALUES:,} values")

    def _give(self, inputs: list[RequestInput], raw: list[tuple[int, int]]) -> None:
        """Assign the raw contents, in order, to the inputs without other contents."""
        empty = [one for one in inputs if not len(one.data)]
        if len(empty) != len(raw):
            raise MalformedRequest(
                f"{len(empty)} inputs have no contents, and {len(raw)} raw ones came"
            )
        for one, (a, b) in zip(empty, raw, strict=True):
            one.data = raw_values(one, memoryview(self._data)[a:b])
            if one.datatype in TYPES:
                self._count(len(one.data))


def _cast(values: NDArray[np.uint64], dtype: str) -> NDArray[Any]:
    """Numbers reduced to their type, as protobuf does, which drops the higher bits."""
    return values != 0 if dtype == "bool" else values.astype(dtype)


def _data(contents: Mapping[int, list[Any]]) -> NDArray[Any] | list[Any]:
    for number, parts in contents.items():
        if number == _BYTES_CONTENTS:
            return parts
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    return []
