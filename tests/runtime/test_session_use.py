"""Sessions in use: streams of predictions, kinds of images, the end of a session."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.runtime.models import SIDE, capsule_model, metadata, save
from tests.runtime.pictures import LEFT, encoded

# Streams


def test_a_generator_is_read_batch_by_batch(session: capsedge.Session) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Camera:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return LEFT

    def frames() -> Iterator[Any]:
        nonlocal most
        for _ in range(300):
            frame = Camera()
            alive.add(frame)
            most = max(most, len(alive))
            yield frame
            del frame
            gc.collect(0)

    assert len(session.predict(frames())) == 300
    assert most <= 2


def test_a_stream_gives_each_prediction_at_once(session: capsedge.Session) -> None:
    read = 0

    def camera() -> Iterator[np.ndarray]:
        nonlocal read
        while True:
            read += 1
            yield LEFT if read % 2 else LEFT[:, ::-1]

    found = session.stream(camera())
    assert read == 0
    assert [next(found).label for _ in range(3)] == ["left", "right", "left"]
    assert read == 3
    several = session.stream(camera(), batch_size=4)
    next(several)
    assert read == 7


def test_a_stream_refuses_wrong_arguments_at_once(session: capsedge.Session) -> None:
    for options in (
        {"top_k": 0},
        {"top_k": "3"},
        {"threshold": 2},
        {"threshold": "0.5"},
        {"layout": "X"},
        {"batch_size": 0},
        {"batch_size": 1.5},
    ):
        with pytest.raises(UsageError):
            session.stream(iter([LEFT]), **options)  # type: ignore[arg-type]


def test_one_bad_image_ends_a_stream_where_it_is(session: capsedge.Session) -> None:
    found = session.stream([LEFT, b"", LEFT])
    assert next(found).label == "left"
    with pytest.raises(UsageError, match="image 1 is empty"):
        next(found)


# The session


def test_prepare_takes_one_image(session: capsedge.Session) -> None:
    assert session.prepare(encoded(LEFT)).shape == (1, SIDE, SIDE)
    assert session.prepare(LEFT[None]).shape == (1, SIDE, SIDE)
    with pytest.raises(UsageError, match="one image, not several"):
        session.prepare(np.stack([LEFT] * 2))
    with pytest.raises(UsageError, match="one image, not none"):
        session.prepare([])  # type: ignore[arg-type]


def test_a_model_with_normalization_predicts_the_same_from_every_kind(tmp_path: Path) -> None:
    properties = metadata(
        preprocessing=Preprocessing(8, 8, 1, mean=(0.1,), std=(0.3,))
    ).to_properties()
    session = capsedge.load(save(capsule_model(properties=properties), tmp_path / "m.onnx"))
    wanted = session.predict(LEFT)[0].scores
    for images, options in (
        (LEFT / 255, {}),
        (LEFT[None, :, :, None] / 255, {}),
        (LEFT[None, None] / 255, {"prepared": False}),
        (session.prepare(LEFT), {}),
        (session.prepare(LEFT)[None], {}),
        (session.prepare(LEFT)[0, ..., None], {"prepared": True, "layout": "HWC"}),
    ):
        np.testing.assert_allclose(session.predict(images, **options)[0].scores, wanted, rtol=1e-5)  # type: ignore[arg-type]


def test_a_closed_session(session: capsedge.Session) -> None:
    with session as same:
        assert same is session
        assert not session.closed
        later = session.stream([LEFT])
    assert session.closed
    session.close()
    session.close()
    assert session.inputs[0].name == "images"
    assert session.backend.batches.fixed is None
    assert "closed" in repr(session)
    x = np.zeros((1, 1, SIDE, SIDE), np.float32)
    for use in (
        lambda: session.predict(LEFT),
        lambda: session(LEFT),
        lambda: session.stream([LEFT]),
        lambda: next(later),
        lambda: session.run(x),
        lambda: list(session.run_batches(x)),
        lambda: session.run_on_device({"images": x}),
        lambda: capsedge.profile(session, duration=0.01),
        session.__enter__,
    ):
        with pytest.raises(UsageError, match=r"is closed(.|\n)*capsedge.load"):
            use()


def test_an_error_closes_the_session(session: capsedge.Session) -> None:
    with pytest.raises(ZeroDivisionError), session:
        _ = 1 / 0
    assert session.closed
