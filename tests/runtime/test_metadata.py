"""Metadata survives the file, and damaged metadata is refused in words."""

from __future__ import annotations

import json

import pytest

from capsedge.errors import ArtefactError
from capsedge.runtime.files.limits import IMAGE_SIDE, ORIGIN_CHARACTERS, ORIGIN_ENTRIES
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
        {"per_image": "whiten"},
        {"layout": "NWHC"},
        {"order": "GBR"},
        {"order": "BGR", "channels": 1},
        {"per_image": "standardize", "mean": (0.5,)},
        {"per_image": "standardize", "std": (1.0, 2.0), "channels": 2},
    ],
)
def test_impossible_preprocessing(values: dict[str, object]):
    with pytest.raises(ValueError):  # noqa: PT011
        Preprocessing(**{"height": 28, "width": 28, "channels": 1, **values})  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("task", "outputs", "names"),
    [
        ("regression", None, ()),
        ("regression", Outputs(scores="x", kind="length"), ()),
        ("regression", ANGLES, ("a", "b")),
        ("regression", Outputs(values=("x",)), ()),
        ("regression", Outputs(values=("x",), names=("a",)), ()),
        ("regression", Outputs(values=("x", "x"), names=("a",), units=("",)), ()),
        ("regression", Outputs(values=("x", ""), names=("a",), units=("",)), ()),
        ("regression", Outputs(values=("x",), names=("a" * 1025,), units=("",)), ()),
        ("regression", Outputs(values=("x",), names=("a",) * 65537, units=("",) * 65537), ()),
        ("single-label", ANGLES, ()),
        ("single-label", Outputs(scores="x"), ()),
        ("single-label", Outputs(scores="x", kind="odds"), ()),
        ("single-label", Outputs(poses="x"), ()),
        ("multi-label", Outputs(scores="x", kind="logits", poses="x"), ()),
        ("multi-label", Outputs(scores="x", kind="logits", units=("mm",)), ()),
        ("guess", None, ()),
    ],
)
def test_impossible_outputs(task: str, outputs: Outputs | None, names: tuple[str, ...]):
    with pytest.raises(ValueError):  # noqa: PT011
        metadata(task=task, outputs=outputs, class_names=names)


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


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"notes": ["x" * (ORIGIN_CHARACTERS + 1)]}, "characters"),
        ({"licence": "x" * (ORIGIN_CHARACTERS + 1)}, "characters"),
        ({"compared": {"x" * (ORIGIN_CHARACTERS + 1): 1}}, "characters"),
        ({"differences": [""] * (ORIGIN_ENTRIES + 1)}, "entries"),
        ({"compared": {str(k): k for k in range(ORIGIN_ENTRIES + 1)}}, "entries"),
        ({"compared": {"inputs": [1]}}, "compared.inputs"),
        ({"family": 3}, "family"),
        ({"code": "x"}, "unknown: code"),
    ],
)
def test_an_impossible_origin_is_refused(changes: dict[str, object], why: str):
    properties = metadata(origin=ORIGIN).to_properties()
    stated = json.loads(properties[ORIGIN_PROPERTY]) | changes
    with pytest.raises(ArtefactError) as refused:
        ModelMetadata.from_properties(properties | {ORIGIN_PROPERTY: json.dumps(stated)})
    assert why in refused.value.why


def test_the_origin_has_one_place():
    with pytest.raises(ArtefactError, match="cannot be read"):
        ModelMetadata.from_properties(metadata().to_properties() | {"capsedge.origin": "null"})


def test_class_names_have_limits():
    properties = metadata(class_names=("x" * 1024,)).to_properties()
    assert ModelMetadata.from_properties(properties) is not None
    for names, why in ((["x" * 1025], "1024 characters"), (["x"] * 65537, "65536 classes")):
        with pytest.raises(ArtefactError, match=why):
            ModelMetadata.from_properties(properties | {"capsedge.class_names": json.dumps(names)})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"task": "regression", "class_names": (), "outputs": ANGLES},
            "a regression has no classes",
        ),
        ({"preprocessing": None}, "needs the preprocessing"),
    ],
)
def test_properties_with_names_of_their_own_contradict_others(
    changes: dict[str, object], text: str
):
    parent = {"file": "a", "sha256": "b", "bytes": 1}
    shares = dict.fromkeys(("min_agreement", "agreement", "agreement_at_least", "share"), 1)
    cascade = {
        "small": parent, "large": parent, "margin": 0.1, "score": None, "images": 1, "data_sha256": "",
        "cost": 0.1, **shares,
    }  # fmt: skip
    spans = ("contrast", "level", "roughness", "frame_level", "frame_contrast")
    said = metadata(**changes).to_properties()
    said["capsedge_cascade"] = json.dumps(cascade)
    if changes.keys() == {"preprocessing"}:
        said["capsedge_nothing"] = json.dumps({name: [0.1, 0.2] for name in spans})
    with pytest.raises(ArtefactError, match=text):
        ModelMetadata.from_properties(said)
