"""Metadata survives the file; what is refused is in ``spec/vectors`` and `test_vectors`."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

import pytest

from capsedge.errors import ArtefactError
from capsedge.runtime.metadata.cascade_metadata import Cascade, CascadeParent
from capsedge.runtime.metadata.metadata import (
    ModelMetadata,
    Outputs,
    Preprocessing,
    Provenance,
    how_to_add_decoder,
    how_to_export_again,
    provenance_of,
    reference_options,
)
from capsedge.runtime.metadata.origin import Origin
from capsedge.runtime.metadata.scores import ChosenScores
from capsedge.runtime.metadata.typical_input import TypicalInput
from capsedge.runtime.session.routing_trace import TraceLayer, TraceOutputs
from capsedge.spec import limits
from capsedge.spec.fields import SCHEMA
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


ORIGIN = Origin(
    "xifengguo", "github.com/somebody/capsules", "MIT", "dynamic routing", ("one",), "m.pt", "0" * 64,
    ("3 iterations",), {"inputs": 1045, "largest_difference": 1e-7, "passed": True, "code": "a.py:b"},
)  # fmt: skip
SPAN = (0.25, 0.5)
LAYER = TraceLayer(
    "classes",
    "dynamic",
    3,
    {"couplings": "a", "poses": "b", "agreement": "c"},
    child_grid=(4, 5),
    types_first=True,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": None},
        {"preprocessing": Preprocessing(8, 8, 1, per_image="min-max")},
        {"preprocessing": Preprocessing(8, 8, 3, layout="NHWC", order="BGR")},
        {"outputs": Outputs(scores="probs", kind="probability")},
        {
            "task": "regression",
            "class_names": (),
            "outputs": Outputs(values=("angles",), names=("yaw", "pitch"), units=("degrees", "")),
        },
        {"origin": ORIGIN},
        {"typical_input": TypicalInput(SPAN, SPAN, SPAN, SPAN, SPAN, 300, "0a1b")},
        {
            "cascade": Cascade(
                CascadeParent("small.onnx", "0a", 1), CascadeParent("large.onnx", "1b", 2, "fp16", "2c"),
                0.125, None, 0.9, 1.0, 0.9375, 0.25, 1000, "3d", 0.375,
            )
        },
        {"trace": TraceOutputs((LAYER,))},
        {"chosen_scores": ChosenScores("lengths of the capsules", "poses", 3, True)},
    ],
    ids=str,
)  # fmt: skip
def test_fields_are_objects(changes: dict[str, Any]):
    """Each has the name of the field, and is absent where the file does not state it."""
    written = metadata(**changes)
    properties = written.to_properties()
    assert ModelMetadata.from_properties(properties) == written
    added = set(properties) - set(metadata().to_properties())
    assert added <= {f"capsedge.{name}" for name in changes}


def test_numbers_that_json_does_not_have_are_null():
    properties = metadata(parity={"a": [math.nan, {"b": -math.inf}], "c": 0.5}).to_properties()
    found = ModelMetadata.from_properties(properties)
    assert found is not None
    assert found.parity == {"a": [None, {"b": None}], "c": 0.5}


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_another_schema_is_refused_before_what_it_may_have(schema: int):
    properties = metadata().to_properties()
    properties |= {"capsedge.schema": str(schema), "capsedge.unheard_of": "{", "capsedge.task": "1"}
    with pytest.raises(ArtefactError) as refused:
        ModelMetadata.from_properties(properties)
    assert str(schema) in refused.value.why
    assert f"reads {SCHEMA}" in refused.value.why
    assert "Export the model again" in refused.value.fix


def test_a_refusal_names_the_property():
    properties = metadata().to_properties() | {"capsedge.cascade": '{"small": 1, "small": 1}'}
    with pytest.raises(ArtefactError) as refused:
        ModelMetadata.from_properties(properties)
    assert refused.value.why == "'cascade': it names 'small' twice."


OWN = metadata(architecture="user's net", configuration={}, preprocessing=Preprocessing(24, 32, 3))
TRAINED = metadata(configuration={"decoder": [512, 1024]})


def test_a_property_may_be_as_long_as_its_limit():
    typical = TypicalInput(SPAN, SPAN, SPAN, SPAN, SPAN, 300, "0a1b")
    properties = metadata(typical_input=typical).to_properties()
    padded = properties["capsedge.typical_input"].ljust(limits.TYPICAL_INPUT_BYTES)
    read = ModelMetadata.from_properties(properties | {"capsedge.typical_input": padded})
    assert read is not None
    assert read.typical_input == typical
    with pytest.raises(ArtefactError, match="'typical_input' has over 4 KiB"):
        ModelMetadata.from_properties(properties | {"capsedge.typical_input": padded + " "})


def test_the_way_back_to_the_network():
    assert provenance_of(None) is provenance_of(metadata(architecture="")) is Provenance.UNKNOWN
    assert provenance_of(OWN) is Provenance.MODULE
    assert provenance_of(TRAINED) is Provenance.CHECKPOINT
    assert reference_options(TRAINED) == "--checkpoint CHECKPOINT"
    assert shlex.split(reference_options(OWN)) == [
        "--module",
        "CODE.py:user's net",
        "--weights",
        "WEIGHTS",
    ]
    assert reference_options(None) == "--module CODE.py:CLASS --weights WEIGHTS"


def test_how_to_export_again():
    assert how_to_export_again(TRAINED, "--with trace") == (
        "Export the network again: "
        "`capsedge export --checkpoint CHECKPOINT --with trace -o NEW.onnx`."
    )
    described = "--example 3x24x32 --classes labels.txt --range 0-1 -o NEW.onnx`."
    assert how_to_export_again(OWN).endswith(described)
    for unknown in (None, metadata(architecture="", preprocessing=None)):
        assert how_to_export_again(unknown).endswith(
            "--example 1x28x28 --classes labels.txt --range 0-1 -o NEW.onnx`, "
            "if you have its PyTorch code."
        )


def test_how_to_add_a_decoder():
    assert how_to_add_decoder(TRAINED) == how_to_export_again(TRAINED, "--with reconstruction")
    assert "trained without a decoder" in how_to_add_decoder(metadata(configuration={"types": 8}))
    for other in (None, OWN):
        told = how_to_add_decoder(other)
        assert told.startswith("Have the network's forward return a dict with 'reconstruction'")
        assert told.endswith(how_to_export_again(other))
