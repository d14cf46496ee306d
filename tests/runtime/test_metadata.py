"""Metadata survives the file; what is refused is in ``spec/vectors`` and `test_vectors`."""

from __future__ import annotations

import json

import pytest

from capsedge.errors import ArtefactError
from capsedge.runtime.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.origin import ORIGIN_PROPERTY, Origin
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


@pytest.mark.parametrize("height", [28.5, True])
def test_sizes_are_whole_numbers(height: object):
    with pytest.raises(ValueError, match="not a whole number"):
        Preprocessing(height, 28, 1)  # type: ignore[arg-type]


ANGLES = Outputs(values=("angles",), names=("yaw", "pitch"), units=("degrees", ""))


def test_what_schema_1_can_say_stays_as_it_was():
    """Older versions read it, byte for byte."""
    properties = metadata().to_properties()
    assert properties["capsedge.schema"] == "1"
    assert "capsedge.outputs" not in properties
    assert "per_image" not in properties["capsedge.preprocessing"]


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": Preprocessing(8, 8, 1, per_image="min-max")},
        {"preprocessing": Preprocessing(8, 8, 1, layout="NHWC")},
        {"preprocessing": Preprocessing(8, 8, 3, order="BGR")},
        {"outputs": Outputs(scores="probs", kind="probability")},
        {"task": "regression", "class_names": (), "outputs": ANGLES},
    ],
)
def test_what_it_cannot_say_is_schema_2(changes: dict[str, object]):
    written = metadata(**changes)
    properties = written.to_properties()
    assert properties["capsedge.schema"] == "2"
    assert ModelMetadata.from_properties(properties) == written
    with pytest.raises(ArtefactError, match="schema 1 has no"):
        ModelMetadata.from_properties(properties | {"capsedge.schema": "1"})
    with pytest.raises(ArtefactError, match="another schema"):
        ModelMetadata.from_properties(properties | {"capsedge.schema": "3"})


ORIGIN = Origin(
    "xifengguo", "github.com/somebody/capsules", "MIT", "dynamic routing", ("one",), "m.pt", "0" * 64,
    ("3 iterations",), {"inputs": 1045, "largest_difference": 1e-7, "passed": True, "code": "a.py:b"},
)  # fmt: skip


def test_the_origin_has_a_property_that_older_readers_ignore():
    """They refuse unknown names under ``capsedge.``."""
    said = metadata(origin=ORIGIN).to_properties()
    assert ModelMetadata.from_properties(said) == metadata(origin=ORIGIN)
    assert {k for k in said if not k.startswith("capsedge.")} == {ORIGIN_PROPERTY}
    del said[ORIGIN_PROPERTY]
    assert said == metadata().to_properties()
