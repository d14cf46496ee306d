"""A model by itself: batches whose members go away or are wrong, and what is not gathered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capsedge
from capsedge.serving import inference
from capsedge.serving.inference import Model
from capsedge.serving.request_bodies import InferRequest, RequestedOutput, RequestInput
from capsedge.serving.responses import compute_outputs
from tests.serving.conftest import images
from tests.serving.models import DIGITS

WAIT = 0.3  # seconds that a batch waits, so that all requests of a test are in one


@pytest.fixture(scope="module")
def session() -> Iterator[capsedge.Session]:
    with capsedge.load(DIGITS, threads=1) as loaded:
        yield loaded


def model(session: capsedge.Session) -> Model:
    """A model that gathers requests."""
    return Model(session, "digits", "", 1, 8, WAIT)


def request(array: NDArray[Any], *outputs: str, shape: list[int] | None = None) -> InferRequest:
    tensor = RequestInput("images", "FP32", shape or list(array.shape), array)
    return InferRequest([tensor], [RequestedOutput(name) for name in outputs])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images of each inference."""
    counted, compute = list[int](), inference.compute_outputs

    def counting(session: Any, arrays: Any, *more: Any) -> Any:
        counted.append(len(arrays["images"]))
        return compute(session, arrays, *more)

    monkeypatch.setattr(inference, "compute_outputs", counting)
    return counted


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_client_that_goes_away_takes_no_answer_with_it(
    gone: int, session: capsedge.Session, runs: list[int]
) -> None:
    given = [images(1 + k, 1, 28, 28, seed=k) for k in range(3)]

    async def run() -> list[Any]:
        one = model(session)
        tasks = [asyncio.ensure_future(one.infer(request(array))) for array in given]
        await asyncio.sleep(WAIT / 2)  # all are in the batch now
        tasks[gone].cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    answers = asyncio.run(run())
    assert runs == [6 - len(given[gone])]
    for number, (array, answer) in enumerate(zip(given, answers, strict=True)):
        if number == gone:
            assert isinstance(answer, asyncio.CancelledError)
            continue
        wanted = session.run(array)["lengths"]
        np.testing.assert_allclose(answer.outputs["lengths"], wanted, rtol=1e-4, atol=1e-6)


def test_a_batch_of_different_requests(session: capsedge.Session, runs: list[int]) -> None:
    """A wrong one fails alone, each gets the outputs it asked for, and large ones run by themselves."""
    given = [images(n, 1, 28, 28, seed=n) for n in (1, 2, 3, 9)]
    asked = [
        request(given[0], "poses"),
        request(given[1]),
        request(given[2], shape=[3, 28, 28, 1]),
        request(given[3], "lengths"),
    ]

    async def run() -> list[Any]:
        one = model(session)
        return await asyncio.gather(*map(one.infer, asked), return_exceptions=True)

    first, second, wrong, large = asyncio.run(run())
    assert sorted(runs) == [3, 9]
    assert isinstance(wrong, capsedge.UsageError)
    assert "Expected: [N, 1, 28, 28]" in str(wrong)
    assert list(first.outputs) == ["poses"]
    assert list(second.outputs) == [port.name for port in session.outputs]
    poses = session.run(given[1])["poses"]
    np.testing.assert_allclose(second.outputs["poses"], poses, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(large.outputs["lengths"], session.run(given[3])["lengths"])


def test_what_the_runtime_refuses_is_the_error_of_its_request_alone(
    session: capsedge.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message has a value of the request, which no other client may see."""
    compute = inference.compute_outputs

    def refusing(session: Any, arrays: Any, *more: Any) -> Any:
        if (arrays["images"] == 60).any():
            raise capsedge.UsageError("The index 60 is too large.")
        return compute(session, arrays, *more)

    monkeypatch.setattr(inference, "compute_outputs", refusing)
    asked = [request(images(1, 1, 28, 28, seed=n)) for n in range(3)]
    asked[1] = request(np.full((1, 1, 28, 28), 60, np.float32))

    async def run() -> list[Any]:
        one = model(session)
        return await asyncio.gather(*map(one.infer, asked), return_exceptions=True)

    first, wrong, last = asyncio.run(run())
    assert isinstance(wrong, capsedge.UsageError)
    for answer, each in ((first, asked[0]), (last, asked[2])):
        wanted = session.run(each.inputs[0].data)["lengths"]
        np.testing.assert_allclose(answer.outputs["lengths"], wanted, rtol=1e-4, atol=1e-6)


def test_answers_over_the_limit_are_refused(
    session: capsedge.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"images": images(70, 1, 28, 28)}
    assert compute_outputs(session, given, ["lengths"], 700)["lengths"].shape == (70, 10)
    with pytest.raises(capsedge.UsageError, match="response would be too large"):
        compute_outputs(session, given, ["lengths"], 699)


def test_predictions_are_those_of_predict(session: capsedge.Session) -> None:
    given = images(3, 1, 28, 28)
    found = session.roles.predictions(given, session.run(given), threshold=0.01)
    wanted = session.predict(given, threshold=0.01, prepared=True)
    assert json.dumps([p.to_dict() for p in found]) == json.dumps([p.to_dict() for p in wanted])
