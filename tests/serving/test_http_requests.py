"""Bodies of HTTP requests: JSON, and binary tensors after it."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from capsedge.serving.request_bodies import (
    MalformedRequest,
    RequestedOutput,
    RequestInput,
    from_http,
)
from capsedge.spec import limits

TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
NO_REQUESTS: dict[str, Any] = {
    "a list": [1],
    "no inputs": {},
    "inputs that are an object": {"inputs": {}},
    "inputs that are numbers": {"inputs": [1, 2]},
    "an input that is a text": {"inputs": ["a"]},
    "an empty input": {"inputs": [{}]},
    "outputs that are numbers": {"inputs": [TENSOR], "outputs": [1]},
    "outputs that are a number": {"inputs": [TENSOR], "outputs": 1},
    "parameters that are a list": {"inputs": [TENSOR], "parameters": []},
    "an id that is a number": {"inputs": [TENSOR], "id": 1},
    "a long id": {"inputs": [TENSOR], "id": "x" * 1025},
    "a long name": {"inputs": [{**TENSOR, "name": "x" * 1025}]},
    "no shape": {"inputs": [{**TENSOR, "shape": None}]},
    "a shape of fractions": {"inputs": [{**TENSOR, "shape": [1.0]}]},
    "a shape of lists": {"inputs": [{**TENSOR, "shape": [[1]]}]},
    "a shape of truth values": {"inputs": [{**TENSOR, "shape": [True]}]},
    "a long shape": {"inputs": [{**TENSOR, "shape": [1] * 9000}]},
    "no data": {"inputs": [{key: TENSOR[key] for key in ("name", "shape", "datatype")}]},
    "data that are an object": {"inputs": [{**TENSOR, "data": {}}]},
}


def test_documents_that_are_no_requests() -> None:
    accepted = []
    for name, document in NO_REQUESTS.items():
        try:
            from_http(json.dumps(document).encode())
            accepted.append(name)
        except MalformedRequest as error:
            accepted += [name] * (not str(error).startswith("body"))
    assert not accepted
    good = {"inputs": [TENSOR], "id": None, "outputs": None, "parameters": None, "more": [{}]}
    assert from_http(json.dumps(good).encode()).inputs[0].data == [1.0]


def test_parameters_belong_to_whom_they_are_given() -> None:
    first, last = {"a": 1, "b": "text"}, {"c": True}
    document = {
        "inputs": [{**TENSOR, "parameters": first}, TENSOR],
        "outputs": [{"name": "y", "parameters": last}, {"name": "z"}],
        "parameters": {"d": 2},
        "id": "x" * 1024,
    }
    found = from_http(json.dumps(document).encode())
    assert [one.parameters for one in found.inputs] == [first, {}]
    assert [(one.name, one.parameters) for one in found.outputs] == [("y", last), ("z", {})]
    assert (found.parameters, found.id, found.raw) == ({"d": 2}, "x" * 1024, False)
    assert RequestInput("x", "FP32", [1], [1.0]).parameters == RequestedOutput("y").parameters == {}


# --- Binary tensors ---


def sent(*tensors: tuple[dict[str, Any], bytes], **more: Any) -> tuple[bytes, int]:
    """The body of a request with binary tensors, and the bytes of its JSON."""
    inputs = [
        {**said, "parameters": {"binary_data_size": len(data), **said.get("parameters", {})}}
        for said, data in tensors
    ]
    text = json.dumps({"inputs": inputs, **more}).encode()
    return text + b"".join(data for _, data in tensors), len(text)


def described(name: str, datatype: str, *shape: int, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": parameters}


def test_the_example_of_the_protocol() -> None:
    """The example of Triton's page about the extension, whose sizes are 16, 3 and 4 bytes."""
    text = json.dumps(
        {
            "model_name": "mymodel",
            "inputs": [
                {"name": "input0", "shape": [2, 2], "datatype": "UINT32",
                 "parameters": {"binary_data_size": 16}},
                {"name": "input1", "shape": [3], "datatype": "BOOL",
                 "parameters": {"binary_data_size": 3}},
            ],
            "outputs": [
                {"name": "output0", "parameters": {"binary_data": True}},
                {"name": "output1"},
            ],
        }
    ).encode()  # fmt: skip
    data = struct.pack("<4I3?", 0, 1, 2**32 - 1, 3, True, False, True)
    found = from_http(text + data, len(text))
    assert found.inputs[0].data.tolist() == [0, 1, 2**32 - 1, 3]  # type: ignore[union-attr]
    assert found.inputs[1].data.tolist() == [True, False, True]  # type: ignore[union-attr]
    assert found.sent_raw(["output0", "output1"]) == {"output0"}


def test_binary_tensors() -> None:
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (b"", b"ab"))
    halves = np.array([0.5, -2], "<f2")
    body, length = sent(
        (described("x", "BYTES", 2), texts),
        (described("y", "BOOL", 3), b"\0\7\1"),
        (described("z", "FP16", 1, 2, a=1), halves.tobytes()),
        (described("empty", "FP64", 0, 4), b""),
    )
    found = from_http(body, length)
    assert found.inputs[0].data == [b"", b"ab"]
    assert [list(one.data) for one in found.inputs[1:]] == [[False, True, True], [0.5, -2], []]
    assert found.inputs[2].parameters["a"] == 1
    for one in found.inputs[1:]:
        assert isinstance(one.data, np.ndarray)
        assert one.data.flags.aligned
        assert one.data.dtype.isnative


def test_tensors_in_json_stand_between_binary_ones() -> None:
    text = json.dumps(
        {
            "inputs": [
                described("a", "UINT8", 1, binary_data_size=1),
                TENSOR,
                described("b", "UINT8", 1, binary_data_size=1),
            ]
        }
    ).encode()
    found = from_http(text + b"\5\6", len(text))
    assert [list(one.data) for one in found.inputs] == [[5], [1.0], [6]]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, set()),
        ({"parameters": {"binary_data_output": True}}, {"y", "z"}),
        ({"parameters": {"binary_data_output": False}}, set()),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]}, {"y"}),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}],
            },
            {"y"},
        ),
    ],
)
def test_which_outputs_are_binary(asked: dict[str, Any], wanted: set[str]) -> None:
    found = from_http(json.dumps({"inputs": [TENSOR], **asked}).encode())
    assert found.sent_raw(["y", "z"]) == wanted


FLOAT = described("x", "FP32", 1)
MANY = 1000
NO_TENSORS: dict[str, tuple[bytes, int | None]] = {
    "no header": (sent((FLOAT, bytes(4)))[0][:-4], None),
    "a byte too few": (lambda body, length: (body[:-1], length))(*sent((FLOAT, bytes(4)))),
    "a byte too many": (lambda body, length: (body + b"x", length))(*sent((FLOAT, bytes(4)))),
    "tensors that nobody takes": (b'{"inputs":[]}1234', 13),
    "another size than its shape": sent((FLOAT, bytes(8))),
    "a shape below 0": sent((described("x", "FP32", -1), b"")),
    "two sizes below 0": sent((described("x", "FP32", -1, -1), bytes(4))),
    "a shape of many sizes": sent((described("x", "FP32", *[2**62] * 10_000), bytes(4))),
    "a size that is no number": sent((described("x", "FP32", 1, binary_data_size="4"), bytes(4))),
    "a size that is a truth value": sent((described("x", "UINT8", 1, binary_data_size=True), b"1")),
    "a size below 0": sent((described("x", "FP32", 1, binary_data_size=-4), bytes(4))),
    "a size of null": sent((described("x", "FP32", 1, binary_data_size=None), bytes(4))),
    "data in JSON too": sent(({**FLOAT, "data": [1.0]}, bytes(4))),
    "no data": sent((FLOAT, bytes(4)), inputs=[{**FLOAT, "parameters": {}}]),
    "half a text": sent((described("x", "BYTES", 1), b"\5\0\0\0abc")),
    "half the length of a text": sent((described("x", "BYTES", 1), b"\5\0")),
    "texts without end": sent((described("x", "BYTES", 1), bytes(4 * MANY + 4))),
    "a truth value that is a number": sent((FLOAT, bytes(4)), parameters={"binary_data_output": 1}),
    "an output's": sent((FLOAT, bytes(4)), outputs=[{"name": "y", "parameters": {"binary_data": "x"}}]),
    "half of the JSON": (sent((FLOAT, bytes(4)))[0], 20),
}  # fmt: skip


def test_binary_tensors_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_ITEMS", MANY)
    accepted = []
    for name, (body, length) in NO_TENSORS.items():
        try:
            from_http(body, length)
            accepted.append(name)
        except MalformedRequest as error:
            accepted += [name] * (len(str(error)) > 200)
    assert not accepted
