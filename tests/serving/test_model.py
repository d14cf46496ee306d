"""The runtime by itself: batches whose members go away or are wrong, and what is not gathered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capsedge
from tests.serving.conftest import images, tensor
from tests.serving.models import DIGITS

WAIT = 0.3  # seconds that a batch waits, so that all requests of a test are in one


@pytest.fixture(scope="module")
def session(engine: None) -> Iterator[capsedge.Session]:
    with capsedge.load(DIGITS, threads=1) as loaded:
        yield loaded


def model(session: capsedge.Session, size: int = 8) -> Any:
    """A model that gathers requests, not loaded yet."""
    from mlserver import ModelSettings

    from capsedge.serving.mlserver_runtime import CapsedgeModel

    settings = ModelSettings(
        implementation=CapsedgeModel, name="digits", max_batch_size=size, max_batch_time=WAIT
    )
    return CapsedgeModel(settings, session)


def request(array: NDArray[Any], *outputs: str, **changes: Any) -> Any:
    from mlserver.types import InferenceRequest

    document = {"inputs": [{**tensor("images", array), **changes}]}
    wanted = [{"name": name} for name in outputs]
    return InferenceRequest(**document, outputs=wanted or None)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, engine: None) -> list[int]:
    """Images of each inference."""
    from capsedge.serving import mlserver_runtime

    counted, compute = list[int](), mlserver_runtime.compute

    def counting(session: Any, arrays: Any, *more: Any) -> Any:
        counted.append(len(arrays["images"]))
        return compute(session, arrays, *more)

    monkeypatch.setattr(mlserver_runtime, "compute", counting)
    return counted


def array_of(answer: Any, name: str) -> NDArray[Any]:
    output = next(o for o in answer.outputs if o.name == name)
    return np.array(output.data.root, np.float32).reshape(output.shape)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_client_that_goes_away_takes_no_answer_with_it(
    gone: int, session: capsedge.Session, runs: list[int]
) -> None:
    given = [images(1 + k, 1, 28, 28, seed=k) for k in range(3)]

    async def run() -> list[Any]:
        one = model(session)
        await one.load()
        tasks = [asyncio.ensure_future(one.predict(request(array))) for array in given]
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
        np.testing.assert_allclose(array_of(answer, "lengths"), wanted, rtol=1e-4, atol=1e-6)


def test_a_batch_of_different_requests(session: capsedge.Session, runs: list[int]) -> None:
    """A wrong one fails alone, each gets the outputs it asked for, and large ones run by themselves."""
    from mlserver.errors import InferenceError

    given = [images(n, 1, 28, 28, seed=n) for n in (1, 2, 3, 9)]
    asked = [
        request(given[0], "poses"),
        request(given[1]),
        request(given[2], shape=[3, 28, 28, 1]),
        request(given[3], "lengths"),
    ]

    async def run() -> list[Any]:
        one = model(session)
        await one.load()
        return await asyncio.gather(*map(one.predict, asked), return_exceptions=True)

    first, second, wrong, large = asyncio.run(run())
    assert sorted(runs) == [3, 9]
    assert isinstance(wrong, InferenceError)
    assert "Wanted: [N, 1, 28, 28]" in str(wrong)
    assert [o.name for o in first.outputs] == ["poses"]
    assert [o.name for o in second.outputs] == [port.name for port in session.outputs]
    poses = session.run(given[1])["poses"]
    np.testing.assert_allclose(array_of(second, "poses"), poses, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(array_of(large, "lengths"), session.run(given[3])["lengths"])


def test_answers_over_the_limit_are_refused(
    session: capsedge.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsedge.serving.responses import compute

    given = {"images": images(70, 1, 28, 28)}
    assert compute(session, given, ["lengths"], 700)["lengths"].shape == (70, 10)
    with pytest.raises(capsedge.UsageError, match="answer would be too large"):
        compute(session, given, ["lengths"], 699)


def test_predictions_are_those_of_predict(session: capsedge.Session) -> None:
    given = images(3, 1, 28, 28)
    found = session.roles.predictions(given, session.run(given), threshold=0.01)
    wanted = session.predict(given, threshold=0.01, prepared=True)
    assert json.dumps([p.to_dict() for p in found]) == json.dumps([p.to_dict() for p in wanted])
