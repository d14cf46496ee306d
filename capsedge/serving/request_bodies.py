"""Define requests of the Open Inference Protocol, and read them from the bodies of HTTP requests.

The body is JSON, which binary tensors may follow: the protocol's binary tensor data extension,
extension_binary_data.md in https://github.com/triton-inference-server/server.

Whatever an untrusted client sends, reading it takes at most a fixed multiple of its size in memory, and no
step holds the interpreter for long, so that it can run next to an event loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from capsedge.serving import bounded_json
from capsedge.serving.request_tensors import BYTES, TYPES
from capsedge.spec import limits

# Parameters of an input, of a request and of an output.
_SIZE, _ALL_RAW, _RAW = "binary_data_size", "binary_data_output", "binary_data"


class MalformedRequest(ValueError):
    """The bytes are not a valid request; the message says why."""


@dataclass
class RequestInput:
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
class RequestedOutput:
    """An output that a request names.

    Attributes:
        raw: whether it is to be sent as raw bytes; the request decides if None.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    raw: bool | None = None


@dataclass
class InferRequest:
    """A request.

    Attributes:
        id: None if the client gives none.
        raw: whether the answer's tensors are to be sent as raw bytes.
    """

    inputs: list[RequestInput]
    outputs: list[RequestedOutput] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    raw: bool = False

    def sent_raw(self, outputs: Iterable[str]) -> set[str]:
        """Those of the answer's outputs that are to be sent as raw bytes."""
        own = {one.name: one.raw for one in self.outputs if one.raw is not None}
        return {name for name in outputs if own.get(name, self.raw)}


def from_http(data: bytes, length: int | None = None) -> InferRequest:
    """The request in the body of an HTTP request.

    Args:
        length: bytes of its JSON, which binary tensors follow; None if it is all JSON.
    """
    try:
        document = bounded_json.parse(data if length is None else data[:length])
    except bounded_json.MalformedBody as error:
        raise MalformedRequest(f"body: {error}") from error
    body = _member(document, "body", dict)
    tensors = None if length is None else _BinaryTensors(memoryview(data)[length:])
    needed = _need(body, "inputs", list, "body")
    inputs = [_json_input(one, k, tensors) for k, one in enumerate(needed)]
    if tensors is not None:
        tensors.end()
    outputs = body.get("outputs")
    wanted = [] if outputs is None else _member(outputs, "body.outputs", list)
    request = InferRequest(
        inputs, [_json_output(one, k) for k, one in enumerate(wanted)], _parameters(body, "body")
    )
    request.raw = bool(_truth(request.parameters, _ALL_RAW, "body"))
    if body.get("id") is not None:
        request.id = bounded_text(_member(body["id"], "body.id", str), "body.id")
    return request


class _BinaryTensors:
    """The bytes after the JSON, which belong to the inputs in their order."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def take(self, size: Any, name: str) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self._data) - self._at:
            left = len(self._data) - self._at
            raise MalformedRequest(
                f"{name}: it is not a size of up to {left:,} bytes, which are left"
            )
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def end(self) -> None:
        """Refuse bytes that belong to no input."""
        if self._at < len(self._data):
            left = len(self._data) - self._at
            raise MalformedRequest(f"body: {left:,} bytes of binary tensors belong to no input")


def _json_input(one: Any, number: int, tensors: _BinaryTensors | None) -> RequestInput:
    name = f"body.inputs.{number}"
    one = _member(one, name, dict)
    shape = _need(one, "shape", list, name)
    if any(type(size) is not int for size in shape):
        raise MalformedRequest(f"{name}.shape: sizes are whole numbers")
    tensor = RequestInput(
        bounded_text(_need(one, "name", str, name), f"{name}.name"),
        bounded_text(_need(one, "datatype", str, name), f"{name}.datatype"),
        shape,
        [],
        _parameters(one, name),
    )
    data = one.get("data")
    if _SIZE not in tensor.parameters:
        if not isinstance(data, (list, np.ndarray)):
            raise MalformedRequest(
                f"{name}.data: it is {'missing' if data is None else 'not a list'}"
            )
        tensor.data = data
        return tensor
    where = f"{name}.parameters.{_SIZE}"
    if tensors is None:
        raise MalformedRequest(f"{where}: the header Inference-Header-Content-Length is missing")
    if data is not None:
        raise MalformedRequest(f"{where}: the input has data in JSON too")
    tensor.data = raw_values(tensor, tensors.take(tensor.parameters[_SIZE], where))
    return tensor


def _json_output(one: Any, number: int) -> RequestedOutput:
    name = f"body.outputs.{number}"
    one = _member(one, name, dict)
    parameters = _parameters(one, name)
    raw = _truth(parameters, _RAW, name)
    return RequestedOutput(
        bounded_text(_need(one, "name", str, name), f"{name}.name"), parameters, raw
    )


def _truth(parameters: Mapping[str, Any], key: str, name: str) -> bool | None:
    value = parameters.get(key)
    if value is not None and not isinstance(value, bool):
        raise MalformedRequest(f"{name}.parameters.{key}: it is not true or false")
    return value


def _parameters(owner: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    parameters = owner.get("parameters")
    return {} if parameters is None else _member(parameters, f"{name}.parameters", dict)


_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}


def _need(owner: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    if key not in owner:
        raise MalformedRequest(f"{name}.{key}: it is missing")
    return _member(owner[key], f"{name}.{key}", kind)


def _member(value: Any, name: str, kind: type) -> Any:
    if not isinstance(value, kind):
        raise MalformedRequest(f"{name}: it is not {_KINDS[kind]}")
    return value


def bounded_text(text: str, name: str) -> str:
    """A text that is short enough for a name. Raises MalformedRequest if it is not."""
    if len(text) > limits.NAME_CHARACTERS:
        raise MalformedRequest(f"{name}: it has over {limits.NAME_CHARACTERS:,} characters")
    return text


# --- Raw bytes, after JSON or in a gRPC message ---


def raw_values(tensor: RequestInput, data: memoryview) -> NDArray[Any] | list[bytes]:
    """The values of a tensor sent as raw bytes: little-endian numbers, or texts with their lengths.

    Returns:
        An aligned copy; nothing for an unknown datatype, which is refused when the tensor is read.
    """
    if tensor.datatype == BYTES:
        return _texts(tensor.name, data)
    dtype = TYPES.get(tensor.datatype)
    if dtype is None:
        return []
    if len(tensor.shape) > limits.DIMENSIONS:
        raise MalformedRequest(
            f"the shape of input '{tensor.name[:80]}' has over {limits.DIMENSIONS} sizes"
        )
    count = math.prod(tensor.shape) if min(tensor.shape, default=1) >= 0 else -1
    if len(data) != count * dtype.itemsize:
        _unfit(tensor.name)
    if dtype == np.bool_:
        dtype = np.dtype(np.uint8)
    values: NDArray[Any] = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
    return (
        values.astype(np.bool_) if tensor.datatype == "BOOL" else values
    )  # every byte but 0 is true


def _texts(name: str, data: memoryview) -> list[bytes]:
    """Texts, each after its length in four bytes."""
    texts: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > len(data) or end > len(data):
            _unfit(name)
        if len(texts) >= limits.REQUEST_ITEMS:
            raise MalformedRequest(
                f"input '{name[:80]}' has over {limits.REQUEST_ITEMS:,} elements"
            )
        texts.append(bytes(data[at + 4 : end]))
        at = end
    return texts


def _unfit(name: str) -> NoReturn:
    raise MalformedRequest(f"the contents of input '{name[:80]}' do not fit its datatype and shape")
