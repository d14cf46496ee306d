"""Tensors of requests as arrays and images: what fits their type and shape, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capsedge.errors import UsageError
from capsedge.serving.request_tensors import DATATYPES, TYPES, array_of, encoded_images
from capsedge.spec import limits

PNG = b"\x89PNG\r\n\x1a\n" + b"\xff" * 100_000


def test_every_type_has_the_name_of_the_protocol() -> None:
    assert DATATYPES == {
        "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
        "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
        "float16": "FP16", "float32": "FP32", "float64": "FP64",
    }  # fmt: skip
    assert {datatype: dtype.name for datatype, dtype in TYPES.items()} == {
        datatype: name for name, datatype in DATATYPES.items()
    }


ACCEPTED: dict[str, tuple[str, list[int], Any]] = {
    "truth values": ("BOOL", [3], [True, False, True]),
    "the smallest and the largest": ("INT8", [2], [-128, 127]),
    "large numbers without a sign": ("UINT64", [2], [2**64 - 1, 5]),
    "fractions": ("FP32", [3], [0.5, 1, -2.25]),
    "whole numbers as fractions": ("FP64", [2], [3, -4]),
    "too large for the type, hence infinite": ("FP16", [2], [1e6, -1e6]),
    "lists in lists": ("INT32", [2, 2], [[1, 2], [3, 4]]),
    "flat, of two dimensions": ("FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]),
    "nothing": ("FP32", [0, 4], []),
    "an array": ("FP16", [2, 1], np.arange(2, dtype=np.float32)),
}  # fmt: skip


def test_arrays() -> None:
    wrong = []
    for name, (datatype, shape, data) in ACCEPTED.items():
        found = array_of("x", datatype, shape, data)
        with np.errstate(over="ignore"):
            wanted = np.array(data, TYPES[datatype]).reshape(shape)
        if found.dtype != wanted.dtype or not np.array_equal(found, wanted):
            wrong.append(f"{name}: {found}")
        if found.shape != tuple(shape):
            wrong.append(f"{name}: {found.shape}")
    assert not wrong, "\n".join(wrong)


REFUSED: dict[str, tuple[str, list[int], Any, str]] = {
    "an unknown type": ("FP8", [1], [1.0], "datatype 'FP8'"),
    "a value too few": ("FP32", [2, 2], [1.0, 2.0, 3.0], "3 values"),
    "a value too many": ("FP32", [2], [1.0, 2.0, 3.0], "3 values"),
    "rows of different lengths": ("FP32", [3], [[1.0], [2.0, 3.0]], "not values of type FP32"),
    "texts": ("FP32", [1], ["1.0"], "not values of type FP32"),
    "truth values as numbers": ("FP32", [1], [True], "not values of type FP32"),
    "a truth value among fractions": ("FP32", [2], [0.5, True], "not values of type FP32"),
    "a truth value in a row": ("FP64", [2, 2], [[1, 2.5], [3, False]], "not values of type FP64"),
    "a truth value among whole numbers": ("INT64", [2], [True, 3], "not values of type INT64"),
    "numbers as truth values": ("BOOL", [2], [0, 1], "not values of type BOOL"),
    "fractions as whole numbers": ("INT64", [1], [1.5], "not values of type INT64"),
    "just above the range": ("INT8", [1], [128], "outside the range of INT8"),
    "just below the range": ("INT8", [1], [-129], "outside the range of INT8"),
    "below zero without a sign": ("UINT8", [1], [-1], "outside the range of UINT8"),
    "below zero beside 64 bits": ("UINT64", [2], [2**64 - 1, -1], "not values of type UINT64"),
    "more than 64 bits": ("UINT64", [1], [2**64], "not values of type UINT64"),
    "a size below zero": ("FP32", [-1], [], "shape"),
    "more axes than an array has": ("FP32", [1] * 1000, [1.0], "1,000 axes"),
    "too many values": ("FP32", [limits.REQUEST_VALUES + 1], [], "too large"),
}  # fmt: skip


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except UsageError as error:
        return f"{error} {error.why}"
    return "accepted"


def test_arrays_that_are_refused() -> None:
    found = {name: refusal(array_of, "x", *case) for name, (*case, _) in REFUSED.items()}
    assert not {name: text for name, text in found.items() if REFUSED[name][-1] not in text}


def test_images() -> None:
    text = base64.b64encode(PNG)
    for data in ([PNG], PNG, [text], text.decode(), (text.decode(),)):
        assert encoded_images("x", [1], data) == [PNG]
    assert encoded_images("x", [2, 1], [text, PNG]) == [PNG, PNG]


@pytest.mark.parametrize(
    ("shape", "data", "said"),
    [
        ([2], [PNG], "1 elements"),
        ([0], [], "0 elements"),
        ([1], [5], "image 0 of input 'x' is not a string"),
        ([2], [PNG, "?"], "image 1 of input 'x' is neither"),
        ([1], [base64.b64encode(PNG[:4]) * 50_000], "neither an image file nor base64"),
    ],
)
def test_images_that_are_refused(shape: list[int], data: Any, said: str) -> None:
    assert said in refusal(encoded_images, "x", shape, data)
