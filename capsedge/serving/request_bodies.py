"""Read a request of the Open Inference Protocol from the bytes of JSON or protobuf.

Whatever an untrusted client sends, reading it takes at most a fixed multiple of its size in memory, and no
step holds the interpreter for long, so that it can run next to an event loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.onnx_file import wire
from capsedge.runtime.onnx_file.wire import BYTES, FIXED32, FIXED64, VARINT, Wire
from capsedge.serving import bounded_json
from capsedge.serving.request_tensors import BYTES as FILES
from capsedge.serving.request_tensors import TYPES
from capsedge.spec import limits

_PIECE = 256 * limits.KIB  # bytes of packed numbers read at a time
_TEXT = 64 * limits.KIB  # bytes of one text of a gRPC message


class Malformed(ValueError):
    """The bytes are not a valid request; the message says why."""


@dataclass
class Input:
    """A tensor of a request.

    Attributes:
        name, datatype, shape: as stated by the client.
        data: its values, an array or a list; texts and files are bytes.
        parameters: parameters of this tensor.
    """

    name: str
    datatype: str
    shape: list[int]
    data: NDArray[Any] | list[Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Output:
    """An output that a request names."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class InferRequest:
    """A request.

    Attributes:
        id: None if the client gives none.
        raw: whether the tensors arrived, and the answer is to be sent, as raw bytes.
    """

    inputs: list[Input]
    outputs: list[Output] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    raw: bool = False


def from_json(data: bytes) -> InferRequest:
    """The request in a JSON document.

    Raises:
        Malformed: it is none, or exceeds a limit.
    """
    try:
        document = bounded_json.parse(data)
    except bounded_json.Malformed as error:
        raise Malformed(f"body: {error}") from error
    body = _member(document, "body", dict)
    inputs = [_json_input(one, k) for k, one in enumerate(_need(body, "inputs", list, "body"))]
    outputs = body.get("outputs")
    wanted = [] if outputs is None else _member(outputs, "body.outputs", list)
    found = InferRequest(
        inputs, [_json_output(one, k) for k, one in enumerate(wanted)], _parameters(body, "body")
    )
    if body.get("id") is not None:
        found.id = _short(_member(body["id"], "body.id", str), "body.id")
    return found


def _json_input(one: Any, number: int) -> Input:
    name = f"body.inputs.{number}"
    one = _member(one, name, dict)
    shape = _need(one, "shape", list, name)
    if any(type(size) is not int for size in shape):
        raise Malformed(f"{name}.shape: sizes are whole numbers")
    data = one.get("data")
    if not isinstance(data, (list, np.ndarray)):
        raise Malformed(f"{name}.data: it is {'missing' if data is None else 'not a list'}")
    return Input(
        _short(_need(one, "name", str, name), f"{name}.name"),
        _short(_need(one, "datatype", str, name), f"{name}.datatype"),
        shape,
        data,
        _parameters(one, name),
    )


def _json_output(one: Any, number: int) -> Output:
    name = f"body.outputs.{number}"
    one = _member(one, name, dict)
    return Output(_short(_need(one, "name", str, name), f"{name}.name"), _parameters(one, name))


def _parameters(owner: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = owner.get("parameters")
    return {} if found is None else _member(found, f"{name}.parameters", dict)


_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}


def _need(owner: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    if key not in owner:
        raise Malformed(f"{name}.{key}: it is missing")
    return _member(owner[key], f"{name}.{key}", kind)


def _member(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{name}: it is not {_KINDS[kind]}")
    return value


def _short(text: str, name: str) -> str:
    if len(text) > limits.NAME_CHARACTERS:
        raise Malformed(f"{name}: it has over {limits.NAME_CHARACTERS:,} characters")
    return text


# --- gRPC, with the field numbers of the protocol's ModelInferRequest ---

_CONTENTS = {1: "bool", 2: "int32", 3: "int64", 4: "uint32", 5: "uint64", 6: "f4", 7: "f8"}
_FIXED = {6: FIXED32, 7: FIXED64}
_BYTES_CONTENTS = 8


def from_grpc(data: bytes) -> tuple[str, str, InferRequest]:
    """The model's name, its version and the request in a ModelInferRequest.

    Raises:
        Malformed: it is none, or exceeds a limit.
    """
    try:
        return _Message(data).request()
    except wire.Malformed as error:
        raise Malformed(str(error)) from error


class _Message:
    """Reads a ModelInferRequest."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._wire = Wire(data, limits.REQUEST_ITEMS)
        self._remaining = limits.REQUEST_VALUES

    def request(self) -> tuple[str, str, InferRequest]:
        texts = {1: "", 2: "", 3: ""}  # name, version, id
        found, raw = InferRequest([]), list[tuple[int, int]]()
        parameters: dict[str, Any] = {}
        for number, a, b in self._wire.messages(0, len(self._data)):
            if number in texts:
                texts[number] = _short(self._text(a, b), "a name")
            elif number == 4:
                self._parameter(a, b, parameters)
            elif number == 5:
                found.inputs.append(self._input(a, b))
            elif number == 6:
                found.outputs.append(self._output(a, b))
            elif number == 7:
                raw.append((a, b))
        found.parameters, found.id, found.raw = parameters, texts[3], bool(raw)
        if raw:
            self._give(found.inputs, raw)
        return texts[1], texts[2], found

    def _input(self, start: int, end: int) -> Input:
        texts, shape, parameters = {1: "", 2: ""}, list[int](), dict[str, Any]()
        contents: dict[int, list[Any]] = {}
        for number, kind, a, b in self._wire.fields(start, end):
            if number == 3 and kind in (VARINT, BYTES):
                if kind == BYTES and b - a > 10 * limits.DIMENSIONS:
                    raise Malformed(f"a shape has over {limits.DIMENSIONS} sizes")
                packed = self._packed(a, b) if kind == BYTES else np.array([a], np.uint64)
                shape += packed.astype(np.int64).tolist()
                if len(shape) > limits.DIMENSIONS:
                    raise Malformed(f"a shape has over {limits.DIMENSIONS} sizes")
            elif kind == BYTES and number in texts:
                texts[number] = _short(self._text(a, b), "a name")
            elif kind == BYTES and number == 4:
                self._parameter(a, b, parameters)
            elif kind == BYTES and number == 5:
                self._contents(a, b, contents)
        if len(contents) > 1:
            raise Malformed(f"the contents of input '{texts[1]}' are of several types")
        return Input(texts[1], texts[2], shape, _data(contents), parameters)

    def _output(self, start: int, end: int) -> Output:
        name, parameters = "", dict[str, Any]()
        for number, a, b in self._wire.messages(start, end):
            if number == 1:
                name = _short(self._text(a, b), "a name")
            elif number == 2:
                self._parameter(a, b, parameters)
        return Output(name, parameters)

    def _parameter(self, start: int, end: int, into: dict[str, Any]) -> None:
        name, value = "", None
        for number, a, b in self._wire.messages(start, end):
            if number == 1:
                name = _short(self._text(a, b), "a name")
            elif number == 2:
                value = self._value(a, b)
        into[name] = value

    def _value(self, start: int, end: int) -> Any:
        """The value of an InferParameter; the last of its fields counts."""
        found: Any = None
        for number, kind, a, b in self._wire.fields(start, end):
            if (number, kind) == (1, VARINT):
                found = a != 0
            elif (number, kind) == (2, VARINT):
                found = a - (1 << 64) if a >> 63 else a
            elif (number, kind) == (3, BYTES):
                found = self._text(a, b)
            elif (number, kind) == (4, FIXED64):
                found = float(np.frombuffer(self._data, "<f8", 1, a)[0])
            elif (number, kind) == (5, VARINT):
                found = a
        return found

    def _contents(self, start: int, end: int, into: dict[int, list[Any]]) -> None:
        for number, kind, a, b in self._wire.fields(start, end):
            if number == _BYTES_CONTENTS and kind == BYTES:
                into.setdefault(number, []).append(self._data[a:b])
            elif number in _CONTENTS:
                fixed = _FIXED.get(number)
                if kind == BYTES:
                    found = self._numbers(number, a, b)
                elif kind == fixed:
                    found = self._fixed(_CONTENTS[number], a, b)
                elif kind == VARINT and fixed is None:
                    found = _cast(np.array([a], np.uint64), _CONTENTS[number])
                else:
                    continue
                self._count(found.size)
                into.setdefault(number, []).append(found)

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
            raise Malformed("it ends inside a number")
        return np.frombuffer(self._data, kind, (b - a) // kind.itemsize, a).copy()  # aligned

    def _packed(self, a: int, b: int) -> NDArray[np.uint64]:
        """Numbers of 1 to 10 bytes, whose last byte is below 128."""
        read = np.frombuffer(self._data, np.uint8, b - a, a)
        ends = np.flatnonzero(read < 0x80)
        if len(read) and (not len(ends) or ends[-1] != len(read) - 1):
            raise Malformed("it ends inside a number")
        if len(ends) == len(read):
            return read.astype(np.uint64)
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        if lengths.max() > 10:
            raise Malformed("a number does not end")
        found = np.zeros(len(ends), np.uint64)
        for place in range(int(lengths.max())):
            there = lengths > place
            bits = (read[starts[there] + place] & 0x7F).astype(np.uint64)
            found[there] |= bits << np.uint64(7 * place)
        return found

    def _text(self, a: int, b: int) -> str:
        if b - a > _TEXT:
            raise Malformed(f"a text has over {_TEXT:,} bytes")
        try:
            return self._wire.text(a, b)
        except UnicodeDecodeError as error:
            raise Malformed("a text is not UTF-8") from error

    def _count(self, values: int) -> None:
        self._remaining -= values
        if self._remaining < 0:
            raise Malformed(f"its inputs have over {limits.REQUEST_VALUES:,} values")

    def _give(self, inputs: list[Input], raw: list[tuple[int, int]]) -> None:
        """Assign the raw contents, in order, to the inputs without other contents."""
        empty = [one for one in inputs if not len(one.data)]
        if len(empty) != len(raw):
            raise Malformed(f"{len(empty)} inputs have no contents, and {len(raw)} raw ones came")
        for one, (a, b) in zip(empty, raw, strict=True):
            if one.datatype == FILES:
                one.data = self._files(one.name, a, b)
                continue
            dtype = TYPES.get(one.datatype)
            if dtype is None:
                continue  # the datatype is refused when the tensor is read
            count = math.prod(one.shape) if min(one.shape, default=1) >= 0 else -1
            if b - a != count * dtype.itemsize:
                _unfit(one.name)
            self._count(count)
            if dtype == np.bool_:
                one.data = self._fixed("u1", a, b) != 0  # any other byte is true too
            else:
                one.data = self._fixed(dtype.str[1:], a, b)

    def _files(self, name: str, a: int, b: int) -> list[bytes]:
        found: list[bytes] = []
        while a < b:
            end = a + 4 + int.from_bytes(self._data[a : a + 4], "little")
            if a + 4 > b or end > b:
                _unfit(name)
            if len(found) >= limits.REQUEST_ITEMS:
                raise Malformed(f"input '{name}' has over {limits.REQUEST_ITEMS:,} elements")
            found.append(self._data[a + 4 : end])
            a = end
        return found


def _unfit(name: str) -> NoReturn:
    raise Malformed(f"the contents of input '{name[:80]}' do not fit its datatype and shape")


def _cast(values: NDArray[np.uint64], dtype: str) -> NDArray[Any]:
    """Numbers reduced to their type, as protobuf does, which drops the higher bits."""
    return values != 0 if dtype == "bool" else values.astype(dtype)


def _data(contents: Mapping[int, list[Any]]) -> NDArray[Any] | list[Any]:
    for number, parts in contents.items():
        if number == _BYTES_CONTENTS:
            return parts
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    return []
