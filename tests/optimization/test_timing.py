"""The speed of an optimized file: what is fed, and why nothing was measured."""

from __future__ import annotations

import numpy as np

from capsedge.errors import EnvironmentProblem
from capsedge.optimization.optimize import _failure, _feeds
from tests.tables import table

FAILED = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running "


@table(
    "message, told",
    [
        (
            FAILED
            + "Gather node. Name:'/t/Gather' Status Message: indices element out of data bounds, idx=1 "
            "must be within the inclusive range [-1,0]",
            "input 'ids' has an index that its table does not have. Found: 1; expected: 0 to 0.",
        ),
        (
            FAILED
            + "Reshape node. Name:'/R' Status Message: /src/reshape.h:84 Reshape(const Shape&, bool) "
            "size != 0 was false. The shapes differ.",
            "the Reshape node '/R' fails: The shapes differ.",
        ),
        ("Out of memory.", "ort failed. Out of memory."),
    ],
)
def test_a_failure_is_a_sentence(message: str, told: str) -> None:
    error = EnvironmentProblem("ort failed.", message, "Run it by itself.")
    assert _failure(error, {"ids": np.ones((1, 2), np.int64)}) == told


def test_indices_are_within_their_tables() -> None:
    inputs = {"x": ([0, 3], "float32", 0), "mask": ([0, 3], "int64", 0), "only": ([0], "int64", 1)}
    found = _feeds(inputs, 2)
    assert found["x"].shape == (2, 3)
    assert found["x"].dtype == np.float32
    assert found["mask"].tolist() == [[1, 1, 1]] * 2
    assert found["only"].tolist() == [0, 0]
