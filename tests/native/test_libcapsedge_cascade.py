"""C and Python take the long way for the same images, with the same bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import capsedge
from capsedge.runtime.load import load_bytes
from tests.optimization.cascades import pair, pixels
from tests.runtime.models import capsule_model

from . import libcapsedge
from .libcapsedge import ARTEFACT, Failed, Session


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    small, large = pair(tmp_path_factory.mktemp("cascade"))
    return capsedge.cascade(small, large, min_agreement=0.98, data=pixels(400)).model


def test_the_same_images_and_bits(cascade: bytes):
    images = pixels(150, seed=7)
    wanted = load_bytes(cascade).predict(images)
    found = Session(cascade).predict(list(images[..., None]))
    assert [p["escalated"] for p in found] == [p.escalated for p in wanted]
    assert 0 < sum(p["escalated"] for p in found) < 150
    for mine, python in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine["scores"], python.scores)
        np.testing.assert_array_equal(mine["poses"], python.poses)


def test_other_models_have_none(cascade: bytes):
    plain = capsule_model().SerializeToString()
    assert Session(plain).predict([pixels(1)[0, ..., None]])[0]["escalated"] is None


def test_older_programs_read_what_they_know():
    """New fields come last: a program that does not know them has a shorter structure."""
    names = [name for name, *_ in libcapsedge.Result._fields_]
    assert names[-4:] == ["escalated", "mask", "mask_height", "mask_width"]


def test_a_cascade_needs_its_output(cascade: bytes):
    entries = onnx.load_model_from_string(cascade).metadata_props
    bare = capsule_model(properties={p.key: p.value for p in entries}).SerializeToString()
    with pytest.raises(Failed, match="no output escalated") as error:
        Session(bare)
    assert error.value.code == ARTEFACT
