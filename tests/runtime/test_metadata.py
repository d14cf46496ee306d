"""Metadata survives the file, and damaged metadata is refused in words."""

from __future__ import annotations

import json

import pytest

from capsedge.errors import ArtefactError
from capsedge.runtime.files.limits import IMAGE_SIDE
from capsedge.runtime.metadata import ModelMetadata, Preprocessing
from tests.runtime.models import metadata


def test_round_trip():
    written = metadata(
        configuration={"types": 8, "nested": [1, 2.5, None]},
        preprocessing=Preprocessing(24, 32, 3, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), resize="crop"),
        parity={"lengths": 1e-7},
    )
    properties = written.to_properties()
    assert all(key.startswith("capsedge.") for key in properties)
    assert all(json.loads(value) is not Ellipsis for value in properties.values())
    assert ModelMetadata.from_properties(properties) == written


def test_foreign_properties_are_none():
    assert ModelMetadata.from_properties({}) is None
    assert ModelMetadata.from_properties({"author": "somebody"}) is None


def test_foreign_properties_beside_ours_are_left_alone():
    properties = metadata().to_properties() | {"author": "somebody"}
    assert ModelMetadata.from_properties(properties) == metadata()


def test_missing_property():
    properties = metadata().to_properties()
    del properties["capsedge.schema"]
    with pytest.raises(ArtefactError, match="schema"):
        ModelMetadata.from_properties(properties)


@pytest.mark.parametrize(
    "values",
    [
        {"height": 0},
        {"height": 28.5},
        {"height": True},
        {"width": IMAGE_SIDE + 1},
        {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        {"mean": (0.0, 0.0)},
        {"std": (0.0,)},
        {"scale": float("nan")},
        {"mean": (float("inf"),)},
        {"resize": "squeeze"},
    ],
)
def test_impossible_preprocessing(values: dict[str, object]):
    with pytest.raises(ValueError):  # noqa: PT011
        Preprocessing(**{"height": 28, "width": 28, "channels": 1, **values})  # type: ignore[arg-type]
