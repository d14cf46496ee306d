"""Requests to `capsedge serve` as fuzz targets: their readers, seeds, and inputs made to break them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.runtime.files.protobuf import length_delimited as field
from capsedge.spec import limits

ZOO = Path(__file__).parents[2] / "capsedge" / "zoo" / "digits-dynamic.onnx"
NESTED = "[" * 100_000


@functools.cache
def _session() -> Any:
    from capsedge import load

    return load(ZOO, threads=1, ops="portable")


def _read(payload: Any) -> None:
    from capsedge.serving.requests import read_request

    read_request(payload, _session())


def read_http(data: bytes) -> None:
    """A body; after the byte 1, JSON that ends with the byte 0, and binary tensors.

    JSON that is accepted has the values of the standard library, which accepts it too.
    """
    from capsedge.serving import bounded_json
    from capsedge.serving.request_bodies import MalformedRequest, from_http

    text, _, tensors = data[1:].partition(b"\0") if data[:1] == b"\1" else (data, b"", b"")
    try:
        found = bounded_json.parse(text)
    except bounded_json.MalformedBody:
        pass
    else:
        wanted = json.loads(text)
        assert _same(found, wanted), f"{found!r} is not {wanted!r}"
    try:
        payload = from_http(text + tensors, len(text) if data[:1] == b"\1" else None)
    except MalformedRequest:
        return
    _read(payload)


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if isinstance(found, bytes):
        found = found.decode()
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(wanted, int) and isinstance(found, float):
        return math.isclose(found, wanted)  # of whole numbers beyond 64 bits, or among fractions
    return bool(found == wanted)


def read_grpc(data: bytes) -> None:
    """A ModelInferRequest."""
    from capsedge.serving.grpc_requests import from_grpc
    from capsedge.serving.request_bodies import MalformedRequest

    try:
        _, _, payload = from_grpc(data)
    except MalformedRequest:
        return
    _read(payload)


def documents() -> Iterable[bytes]:
    """Requests in JSON."""
    image = {"name": "images", "shape": [1, 1, 28, 28], "datatype": "FP32"}
    flat = [0.5, 1, 0, 0.25] * 196
    nested = np.reshape(flat, (1, 1, 28, 28)).tolist()
    file = {"name": "images", "shape": [1], "datatype": "BYTES", "data": ["iVBORw0KGgo="]}
    more = {
        "id": "é\n",
        "outputs": [{"name": "lengths", "parameters": {"classification": 1}}],
        "parameters": {"predictions": True, "top_k": 2, "threshold": 0.5, "invert": False},
    }
    for data in (flat, nested, [1e-7] * 784, [True] * 784, [2**63] * 784):
        yield json.dumps({"inputs": [{**image, "data": data}], **more}).encode()
    yield json.dumps({"inputs": [file, file]}, indent=1).encode()
    for tensor, values in (
        (image, np.zeros(784, "<f4").tobytes()),
        ({**file, "datatype": "BYTES"}, b"\x04\0\0\0\x89PNG"),
    ):
        plain = {key: value for key, value in tensor.items() if key != "data"}
        sent = {**plain, "parameters": {"binary_data_size": len(values)}}
        outputs = [{"name": "lengths", "parameters": {"binary_data": False}}]
        said = {"inputs": [sent], "outputs": outputs, "parameters": {"binary_data_output": True}}
        yield b"\1" + json.dumps(said).encode() + b"\0" + values


def messages() -> Iterable[bytes]:
    """Requests in protobuf."""

    def tensor(datatype: bytes, shape: bytes, contents: bytes = b"") -> bytes:
        said = field(1, b"images") + field(2, datatype) + field(3, shape)
        return field(5, said + field(4, field(1, b"a") + field(2, b"\x08\x01")) + contents)

    head = field(1, b"digits") + field(2, b"1") + field(3, b"an id")
    parameters = {
        b"predictions": b"\x08\x01",
        b"top_k": b"\x10\x02",
        b"threshold": field(3, b"0.5"),
    }
    asked = field(6, field(1, b"lengths"))
    for name, value in parameters.items():
        asked += field(4, field(1, name) + field(2, value))
    shape = b"\x01\x01\x1c\x1c"
    floats = np.linspace(0, 1, 784, dtype="<f4").tobytes()
    yield head + asked + tensor(b"FP32", shape) + field(7, floats)
    yield head + tensor(b"FP32", shape, field(5, field(6, floats)))
    yield head + tensor(b"INT64", shape, field(5, field(3, b"\x80\x01\x07" * 392)))
    yield head + tensor(b"BOOL", shape, field(5, field(1, b"\x01" * 784)))
    yield head + tensor(b"BYTES", b"\x01", field(5, field(8, b"\x89PNG")))
    yield head + tensor(b"BYTES", b"\x01") + field(7, b"\x04\0\0\0\x89PNG")


def hostile_documents() -> dict[str, bytes]:
    """Documents that once took gigabytes, and their kin."""

    def said(data: bytes) -> bytes:
        return (
            b'{"inputs":[{"name":"images","shape":[1,1,28,28],"datatype":"FP32","data":%b}]}' % data
        )

    mib = limits.MIB

    def binary(shape: bytes, datatype: bytes) -> bytes:
        said = b'{"name":"images","shape":[%b],"datatype":"%b"' % (shape, datatype)
        size = b'"parameters":{"binary_data_size":8388608}'
        return b'\1{"inputs":[%b,%b}]}\0%b' % (said, size, bytes(8 * mib))

    return {
        "8 MiB of empty inputs": b'{"inputs":[{}%b]}' % (b",{}" * (8 * mib // 3)),
        "8 MiB of empty lists": b'{"inputs":[[]%b]}' % (b",[]" * (8 * mib // 3)),
        "8 MiB of names": b'{"inputs":[],"a":{"a":0%b}}' % (b',"a":0' * (8 * mib // 6)),
        "8 MiB of spaces": b" " * (8 * mib),
        "8 MiB of rows": said(b"[[0]%b]" % (b",[0]" * (2 * mib))),
        "8 MiB of numbers": said(b"[0%b]" % (b",0" * (4 * mib))),
        "8 MiB of digits": said(b"[%b]" % (b"1" * (8 * mib))),
        "8 MiB of quotes": b'{"id":"%b"}' % (b'\\"' * (4 * mib)),
        "2 million empty binary files": binary(b"1", b"BYTES"),
        "binary, of 60,000 sizes": binary(b"999999999999999999," * 60_000 + b"1", b"FP32"),
        "binary, of 2**62 values": binary(b"4611686018427387904", b"FP32"),
        "nested": NESTED.encode(),
        "nested objects": b'{"a":' * 100_000,
        "2**62 sizes": b'{"inputs":[{"name":"images","shape":[0,4611686018427387904,4611686018427387904],'
        b'"datatype":"FP32","data":[]}]}',
    }  # fmt: skip


def hostile_messages() -> dict[str, bytes]:
    """Messages that once took gigabytes, and their kin."""
    head, mib = field(1, b"digits"), limits.MIB
    return {
        "4 million empty inputs": head + b"\x2a\x00" * (4 * mib),
        "4 million parameters": head + b"\x22\x00" * (4 * mib),
        "8 MiB of truth values": head + field(5, field(5, field(1, b"\x01" * (8 * mib)))),
        "8 MiB of numbers": head + field(5, field(5, field(2, b"\x80\x01" * (4 * mib)))),
        "8 MiB of one number": head + field(5, field(5, field(3, b"\xff" * (8 * mib)))),
        "8 MiB of sizes": head + field(5, field(3, b"\x01" * (8 * mib))),
        "2 million empty files": head + field(5, field(2, b"BYTES")) + field(7, bytes(8 * mib)),
        "2**62 sizes": head
        + field(5, field(1, b"images") + field(2, b"FP32") + field(3, b"\0" + (b"\x80" * 8 + b"\x40") * 2)),
        "a group": head + b"\x2b" * mib,
    }  # fmt: skip
