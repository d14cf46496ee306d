"""Requests in protobuf: the values of its own reader, and nothing that is made before it is counted."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from capsedge.runtime.files.protobuf import length_delimited as field
from capsedge.serving.grpc_messages import COMPILED, message
from capsedge.serving.grpc_requests import from_grpc
from capsedge.serving.request_bodies import MalformedRequest
from capsedge.spec import limits


def test_the_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    compiler = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    proto, found = COMPILED.with_suffix(".proto"), tmp_path / "found"
    words = ["protoc", f"-I{proto.parent}", f"--descriptor_set_out={found}", proto.name]
    assert compiler.main(words) == 0
    assert found.read_bytes() == COMPILED.read_bytes()


def test_clients_of_other_projects_read_the_messages() -> None:
    from tritonclient.grpc import service_pb2

    ours, theirs = message("ModelInferResponse"), service_pb2.ModelInferResponse
    answer = ours(model_name="m", id="1", raw_output_contents=[b"123"])
    answer.outputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
    answer.parameters["predictions"].string_param = "[]"
    read = theirs.FromString(answer.SerializeToString())
    assert ours.FromString(read.SerializeToString(deterministic=True)) == answer
    assert read.outputs[0].contents.fp32_contents[0] == 0.5
    assert not UnknownFieldSet(read)


CONTENTS: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False, True]),
    "INT8": ("int_contents", [-128, 0, 127]),
    "INT32": ("int_contents", [-(2**31), 5, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 300, 2**63 - 1]),
    "UINT16": ("uint_contents", [0, 300, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -1e30, 0.0]),
    "FP64": ("fp64_contents", [0.1, -1e300, 0.0]),
    "BYTES": ("bytes_contents", [b"", b"abc", b"\xff" * 300]),
}


def test_the_values_are_those_of_protobuf() -> None:
    asked = message("ModelInferRequest")(model_name="m", model_version="2", id="é" * 1024)
    for owner in (asked, asked.outputs.add(name="y")):
        owner.parameters["a"].bool_param = False
        owner.parameters["b"].int64_param = -5
        owner.parameters["c"].string_param = "text"
    for datatype, (name, values) in CONTENTS.items():
        tensor = asked.inputs.add(name=datatype, datatype=datatype, shape=[1, 3])
        tensor.parameters["d"].bool_param = True
        getattr(tensor.contents, name).extend(values)
    model, version, found = from_grpc(
        asked.SerializeToString() + b"\xf8\x3f\x01"
    )  # an unknown field
    assert (model, version, found.id, found.raw) == ("m", "2", "é" * 1024, False)
    assert found.parameters == {"a": False, "b": -5, "c": "text"} == found.outputs[0].parameters
    assert found.outputs[0].name == "y"
    for tensor, (datatype, (name, _)) in zip(found.inputs, CONTENTS.items(), strict=True):
        assert (tensor.name, tensor.shape, tensor.parameters) == (datatype, [1, 3], {"d": True})
        wanted = list(getattr(asked.inputs[found.inputs.index(tensor)].contents, name))
        assert list(tensor.data) == wanted, datatype


def test_raw_contents() -> None:
    values = np.arange(3, dtype="<f4")
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (b"", b"ab"))
    made = b"".join(
        field(5, field(1, name) + field(2, datatype) + field(3, shape))
        for name, datatype, shape in (
            (b"x", b"FP32", b"\x03"), (b"y", b"BYTES", b"\x02"), (b"z", b"BOOL", b"\x02"),
        )
    )  # fmt: skip
    _, _, found = from_grpc(
        made + field(7, values.tobytes()) + field(7, texts) + field(7, b"\x00\x07")
    )
    assert found.raw
    np.testing.assert_array_equal(found.inputs[0].data, values)
    assert found.inputs[1].data == [b"", b"ab"]
    assert list(found.inputs[2].data) == [False, True]
    assert all(tensor.data.flags.aligned for tensor in (found.inputs[0], found.inputs[2]))  # type: ignore[union-attr]


def test_numbers_one_by_one() -> None:
    """Which no program sends, and the format allows; also in several parts, over pieces of several sizes."""
    contents = b"\x10\x05" + field(2, b"\x80\x01\x07" * 200_000) + b"\x10\x06"
    _, _, found = from_grpc(field(5, field(5, contents)))
    assert len(found.inputs[0].data) == 400_002
    assert list(found.inputs[0].data[:4]) == [5, 128, 7, 128]


def tensor(**fields: bytes) -> bytes:
    numbers = {"name": 1, "datatype": 2, "shape": 3, "parameters": 4, "contents": 5}
    return field(5, b"".join(field(numbers[key], value) for key, value in fields.items()))


MANY, VALUES = 1001, 50_001  # one more than the test allows
REFUSED = {
    "inputs without end": b"\x2a\x00" * MANY,
    "outputs without end": b"\x32\x00" * MANY,
    "parameters without end": b"\x22\x00" * MANY,
    "raw contents without end": b"\x3a\x00" * MANY,
    "unknown fields without end": b"\xf8\x3f\x01" * MANY,
    "parameters of a tensor": tensor(parameters=b"") * 2 * MANY,
    "texts without end": field(5, field(5, b"\x42\x00" * MANY)),
    "numbers one by one": field(5, field(5, b"\x10\x00" * MANY)),
    "numbers without end": field(5, field(5, field(2, bytes(VALUES)))),
    "two lists of numbers": field(5, field(5, field(2, bytes(VALUES - 1)) * 2)),
    "sizes without end": tensor(shape=b"\x01" * 100),
    "a long name": field(1, b"x" * 2000),
    "a name that is no UTF-8": field(1, b"\xff"),
    "a parameter of 100 KB": field(4, field(1, b"a") + field(2, field(3, b"x" * 100_000))),
    "half a number": field(5, field(5, field(2, b"\x80"))),
    "a number that does not end": field(5, field(5, field(2, b"\xff" * 20 + b"\x01"))),
    "half a fraction": field(5, field(5, field(6, b"123"))),
    "two kinds of contents": field(5, field(5, field(2, b"\x01") + field(3, b"\x01"))),
    "a group": b"\x2b",
    "a field beyond the end": b"\x2a\x7f",
    "raw contents for nobody": field(7, b"1234"),
    "no raw contents": tensor(name=b"x", datatype=b"FP32") + tensor(name=b"y") + field(7, b""),
    "raw contents of another size": tensor(datatype=b"FP32", shape=b"\x02") + field(7, b"1234"),
    "raw contents of 2**62 values": tensor(datatype=b"FP32", shape=b"\xff" * 8 + b"\x3f") + field(7, b"1"),
    "raw contents below 0": tensor(datatype=b"FP32", shape=b"\xff" * 9 + b"\x01") + field(7, b""),
    "a file of 4 GiB": tensor(datatype=b"BYTES", shape=b"\x01") + field(7, b"\xff\xff\xff\xff1"),
    "half the size of a file": tensor(datatype=b"BYTES", shape=b"\x01") + field(7, b"\x01"),
    "files without end": tensor(datatype=b"BYTES", shape=b"\x01") + field(7, bytes(4 * MANY)),
}  # fmt: skip


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_ITEMS", MANY - 1)
    monkeypatch.setattr(limits, "REQUEST_VALUES", VALUES - 1)
    accepted = []
    for name, data in REFUSED.items():
        try:
            from_grpc(data)
            accepted.append(name)
        except MalformedRequest as error:
            accepted += [name] * (len(str(error)) > 200)
    assert not accepted
