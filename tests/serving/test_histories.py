"""A served model whose inputs are ids: requests are answered, and wrong ones are told what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property
from capsedge.serving.inference import Model, sizes_in
from capsedge.serving.request_bodies import InferRequest, RequestInput
from capsedge.serving.served_models import SIZES, BatchSize, can_batch, measure_size
from tests.runtime.test_table_indices import WRONG, given, table_file


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    path = table_file(tmp_path / "m.onnx")
    with capsedge.load(path, threads=1) as session:
        yield Model(session, "histories", "", 1, 8, 0.0)


def request(arrays: dict[str, np.ndarray]) -> InferRequest:
    return InferRequest(
        [RequestInput(name, "INT64", list(x.shape), x) for name, x in arrays.items()], []
    )


def ask(model: Model, arrays: dict[str, np.ndarray]) -> Any:
    return asyncio.run(model.infer(request(arrays)))


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


def test_what_may_run_together(model: Model) -> None:
    """Rows of equal sizes; the size is measured on ids within the tables, of the longest length."""
    assert can_batch(model.session)
    assert measure_size(model.session).images in SIZES
    given_to = [request(given(hist=np.zeros((2, n)))) for n in (5, 5, 6)]
    assert sizes_in(given_to[0]) == sizes_in(given_to[1]) != sizes_in(given_to[2])


def test_without_a_statement_nothing_runs_together(tmp_path: Path) -> None:
    """The file may be another tool's, or have a table only: its rows may depend on each other."""
    for stated in ({}, {"hist": InputBounds(9, independent=True), "user": InputBounds(4)}):
        with capsedge.load(table_file(tmp_path / "m.onnx", inputs_property(stated))) as session:
            assert not can_batch(session)
            assert measure_size(session) == BatchSize(1)


def test_requests_that_run_together_get_their_own_answers(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unequal lengths in separate batches; each wrong one fails alone."""
    ran: list[tuple[int, ...]] = []
    run = model.session.run

    def counted(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ran.append(arrays["hist"].shape)
        time.sleep(0.05)  # while it runs, the others gather
        return run(arrays)

    rng = np.random.default_rng(0)
    asked = [
        given(hist=rng.integers(9, size=(rows, length)), user=rng.integers(4, size=rows))
        for rows, length in ((1, 4), (2, 5), (1, 4), (1, 5), (0, 4), (3, 5), (1, 6), (1, 4), (2, 4))
    ]
    asked.insert(4, given(hist=[[9, 1, 1, 1]], user=[0]))
    asked.insert(7, given(hist=np.ones((2, 5)), user=[0]))
    wanted = [run(one)["interests"] for n, one in enumerate(asked) if n not in (4, 7)]
    monkeypatch.setattr(model.session, "run", counted)

    async def together() -> list[Any]:
        answers = (model.infer(request(one)) for one in asked)
        return await asyncio.gather(*answers, return_exceptions=True)

    found = asyncio.run(together())
    wrong = [found.pop(7), found.pop(4)]
    for answer, own in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(answer.outputs["interests"], own)
    assert "do not fit together" in str(wrong[0])
    assert "'hist' has an index that its table does not have" in str(wrong[1])
    assert len(ran) < len(wanted)
    assert sum(shape[0] for shape in ran) == sum(len(own) for own in wanted)
