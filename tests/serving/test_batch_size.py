"""The size of a batch that the server chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

import capsedge
from capsedge.serving import served_models
from capsedge.serving.served_models import (
    BatchSize,
    can_batch,
    choose_size,
    fixed_size,
    measure_size,
)
from tests.conftest import ROOT
from tests.runtime.models import capsule_model, foreign_model, save

EM = ROOT / "capsedge/zoo/digits-em.onnx"


@pytest.mark.parametrize(
    ("times", "images", "gain"),
    [
        ({}, 1, None),  # even one image takes too long
        ({1: 1.0}, 1, None),
        ({1: 1.0, 2: 0.97, 4: 0.96}, 1, 1.0),
        ({1: 1.0, 2: 0.6, 4: 0.5, 8: 0.49}, 4, 2.0),  # the smallest of those that are as good
        ({1: 1.0, 2: 1.2, 4: 0.5, 8: 0.7}, 4, 2.0),
    ],
)
def test_the_choice(times: dict[int, float], images: int, gain: float | None) -> None:
    assert choose_size(times) == BatchSize(images, gain)


def test_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(_session: object, size: int) -> float:
        counted[size] = counted.get(size, 0) + 1
        return 0.01 + 0.004 * size

    counted: dict[int, int] = {}
    monkeypatch.setattr(served_models, "_seconds", seconds)
    monkeypatch.setattr(served_models, "_SECONDS", 0.0)
    with capsedge.load(EM, threads=1) as session:
        found = measure_size(session)
    # 32 images would take 0.138 seconds.
    assert counted == {1: 4, 2: 4, 4: 4, 8: 4, 16: 4, 32: 1}
    assert found == BatchSize(16, pytest.approx(0.014 / (0.074 / 16)))


def test_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_models, "_SECONDS", 0.05)
    with capsedge.load(EM, threads=1) as session:
        found = measure_size(session)
    assert found.images in served_models.SIZES
    assert found.gain is not None
    assert found.gain > 0.9


def test_models_whose_requests_stay_apart(tmp_path: Path) -> None:
    fixed = save(capsule_model(batch=4), tmp_path / "fixed.onnx")
    other = save(foreign_model({"y": [3]}), tmp_path / "other.onnx")
    for path in (fixed, other):
        with capsedge.load(path, threads=1) as session:
            assert not can_batch(session)
            assert measure_size(session) == fixed_size(session, 8) == BatchSize(1)
    with capsedge.load(EM, threads=1) as session:
        assert can_batch(session)
        assert fixed_size(session, 8) == BatchSize(8)
