"""The step of a Ray Data pipeline, called as Ray calls it; Ray itself is not needed for this."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import capsedge
from capsedge.batch_inference.model_bytes import read_model
from capsedge.batch_inference.ray_step import Predictor
from capsedge.errors import ArtefactError, UsageError
from tests.batch_inference.sources import MODEL, pixels, png


def test_answers_are_those_of_a_session() -> None:
    images = pixels(5)
    found = Predictor(MODEL, outputs=("scores", "poses"), threads=1)(
        {"image": images, "key": np.arange(5)}
    )
    with capsedge.load(MODEL, threads=1) as session:
        wanted = session.predict(images, prepared=False)
    assert [*found] == ["key", "label", "score", "scores", "poses", "atypical", "error"]
    assert found["key"].tolist() == [0, 1, 2, 3, 4]
    assert found["label"].tolist() == [p.label for p in wanted]
    assert found["score"].tolist() == [p.score for p in wanted]
    assert found["atypical"].tolist() == [p.atypical for p in wanted]
    np.testing.assert_array_equal(found["scores"], [p.scores for p in wanted])
    np.testing.assert_array_equal(found["poses"], [p.poses for p in wanted])
    assert found["error"].tolist() == [""] * 5
    assert "ray" not in sys.modules or sys.modules["ray"].is_initialized() is False


def test_bad_images_have_an_error_and_no_numbers() -> None:
    images = np.array([b"bad", png(pixels()[0]), None], object)
    found = Predictor(MODEL, outputs=("scores",), threads=1)({"image": images})
    assert [bool(error) for error in found["error"]] == [True, False, True]
    assert np.isnan(found["score"]).tolist() == [True, False, True]
    assert found["scores"].shape == (3, 10)
    assert found["label"][0] == ""
    only_bad = Predictor(MODEL, outputs=("scores",), threads=1)({"image": images[:1]})
    assert {name: values.dtype for name, values in only_bad.items()} == {
        name: values.dtype for name, values in found.items()
    }


def test_another_column() -> None:
    predictor = Predictor(MODEL, column="bytes", threads=1)
    assert predictor({"bytes": np.array([png(pixels()[0])], object)})["error"].tolist() == [""]
    with pytest.raises(UsageError, match="no column 'bytes'"):
        predictor({"image": pixels(1)})


def test_a_model_that_arrives_damaged_is_refused() -> None:
    model = read_model(MODEL)
    assert Predictor(model, threads=1)({"image": pixels(1)})["error"].tolist() == [""]
    with pytest.raises(ArtefactError, match="arrived damaged"):
        Predictor(replace(model, data=model.data[:-1] + b"?"))
    with pytest.raises(UsageError, match="sent as bytes"):
        Predictor(model, device="cuda")
