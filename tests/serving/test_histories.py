"""A served model whose inputs are ids: requests are answered, and wrong ones are told what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.serving.inference import Model
from capsedge.serving.request_bodies import InferRequest, Input
from tests.runtime.test_table_indices import WRONG, given, table_file


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    path = table_file(tmp_path / "m.onnx")
    with capsedge.load(path, capsedge.RuntimeOptions(threads=1)) as session:
        yield Model(session, "histories", "", 1, 8, 0.0)


def ask(model: Model, arrays: dict[str, np.ndarray]) -> Any:
    tensors = [Input(name, "INT64", list(x.shape), x) for name, x in arrays.items()]
    return asyncio.run(model.infer(InferRequest(tensors, [])))


def test_both_inputs_by_name(model: Model) -> None:
    answer = ask(model, given()).outputs["interests"]
    np.testing.assert_array_equal(answer, model.session.run(given())["interests"])


@pytest.mark.parametrize("changed", [changed for changed, _, _ in WRONG[:-1]])
def test_the_client_is_told_what_is_wrong(model: Model, changed: dict[str, Any]) -> None:
    told = next(told for other, told, _ in WRONG if other is changed)
    with pytest.raises(UsageError, match=told):
        ask(model, given(**changed))


def test_a_missing_input(model: Model) -> None:
    with pytest.raises(UsageError, match="The model takes hist, user"):
        ask(model, given(user=None))
