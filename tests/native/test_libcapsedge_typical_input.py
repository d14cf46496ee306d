"""C and Python find nothing to see in the same images, to the last bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.typical_input import (
    REASONS,
    TYPICAL_INPUT_KEY,
    TypicalInput,
    measure,
    spans_of,
)
from capsedge.runtime.onnx_file.wire import with_properties
from capsedge.runtime.user_metadata import Description, describe_model
from tests.runtime.models import capsule_model, foreign_model, metadata

from . import libcapsedge
from .libcapsedge import Session, call, sized

pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)
RNG = np.random.default_rng(9)
WIDE = TypicalInput((1e-30, 1e30), (-1e30, 1e30), (0, 1e30), (-1e30, 1e30), (0, 1e30))


def model_with(criterion: TypicalInput, prep: Preprocessing) -> bytes:
    last = prep.layout == "NHWC"
    plain = foreign_model({"o": [2]}, channels=prep.channels, last=last).SerializeToString()
    description = Description(None, prep, "regression", typical=lambda _: criterion)
    return describe_model(plain, description).data


def pictures(channels: int) -> list[Any]:
    """Noise, smooth ramps, constant images, and light spots, of several sizes."""
    found = []
    for size in ((8, 8), (30, 17), (5, 40)):
        shape = (*size, channels)
        ramp = np.linspace(0, 255, size[1])[None, :, None]
        spot = np.zeros(shape)
        spot[size[0] // 3 : size[0] // 2 + 1, size[1] // 3 : size[1] // 2 + 1] = 200
        found += [
            RNG.integers(0, 256, shape),
            np.broadcast_to(ramp, shape),
            np.full(shape, RNG.integers(0, 256)),
            np.clip(RNG.normal(20, 5, shape), 0, 255),
            spot,
        ]
    return [np.ascontiguousarray(image.astype(np.uint8)) for image in found]


PREPARATIONS = [
    Preprocessing(8, 8, 1),
    Preprocessing(8, 8, 1, mean=(0.1307,), std=(0.3081,)),
    Preprocessing(8, 8, 3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3), resize="pad"),
    Preprocessing(8, 8, 3, order="BGR", layout="NHWC"),
    Preprocessing(8, 8, 1, per_image="standardize", layout="NHWC"),
    Preprocessing(8, 8, 3, per_image="min-max"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("prep", PREPARATIONS)
def test_the_same_bits(prep: Preprocessing) -> None:
    """A bound at the measurement itself leaves the image in; the next number leaves it out."""
    images = pictures(prep.channels)
    plain = model_with(WIDE, prep)
    session = load_bytes(plain)
    compared = 0
    for image in images:
        found = measure(session.prepare(image), prep.layout)
        if found.contrast < 1e-6:
            continue
        for name, words in REASONS.items():
            value = getattr(found, name)
            up, down = math.nextafter(value, math.inf), math.nextafter(value, -math.inf)
            cases = (
                ((value, 1e30), ""), ((-1e30, value), ""), ((up, 1e30), words[0]),
                ((-1e30, down), words[1]),
            )  # fmt: skip
            for (low, high), word in cases:
                if name == "contrast":
                    low = max(low, 1e-30)
                criterion = replace(WIDE, **{name: (low, high)})
                wanted = f"{word} than in any training image" if word else ""
                assert criterion.atypical_reason(found) == wanted
                properties = {TYPICAL_INPUT_KEY: json.dumps(criterion.to_dict())}
                data = with_properties(plain, properties, (TYPICAL_INPUT_KEY,))
                said = Session(data).predict([image])[0]["atypical"]
                assert said == wanted, (name, value)
                compared += 1
    assert compared >= 200


@pytest.mark.parametrize("prep", PREPARATIONS)
def test_the_same_reasons(prep: Preprocessing) -> None:
    typical = [np.clip(RNG.normal(1, 0.2, prep.shape), 0, 2).astype(np.float32) for _ in range(150)]
    data = model_with(spans_of(typical, prep.layout), prep)
    images = pictures(prep.channels)
    wanted = [p.atypical for p in load_bytes(data).predict(images)]
    assert [p["atypical"] for p in Session(data).predict(images)] == wanted
    assert len(set(wanted)) > 1


def classifier(text: str | None) -> bytes:
    properties = metadata().to_properties()
    if text is not None:
        properties[TYPICAL_INPUT_KEY] = text
    return with_properties(capsule_model().SerializeToString(), properties, ("capsedge",))


def test_labels_and_scores_stay() -> None:
    text = json.dumps(replace(WIDE, contrast=(0.2, 1)).to_dict())
    blank = np.full((8, 8, 1), 40, np.uint8)
    with_criterion, without = (Session(classifier(t)).predict([blank])[0] for t in (text, None))
    assert (with_criterion["atypical"], without["atypical"]) == (
        "less contrast than in any training image",
        "",
    )
    assert with_criterion["scores"].tolist() == without["scores"].tolist()
    assert [x[:3] for x in with_criterion["labels"]] == [x[:3] for x in without["labels"]]


def test_an_older_program_gets_no_more_than_it_has_room_for() -> None:
    """Its structure ends before the new member."""
    import ctypes

    session = Session(classifier(json.dumps(WIDE.to_dict())))
    prediction = ctypes.c_void_p()
    call("capsedge_prediction_create", ctypes.byref(prediction))
    pixels = np.zeros((8, 8, 1), np.uint8)
    image = libcapsedge.image_of(pixels)
    call(
        "capsedge_predict",
        session.handle,
        ctypes.byref(image),
        ctypes.c_size_t(1),
        None,
        prediction,
    )
    old = sized(libcapsedge.Result, atypical=b"untouched")
    old.size = libcapsedge.Result.atypical.offset
    call("capsedge_prediction_result", prediction, ctypes.c_size_t(0), ctypes.byref(old))
    assert old.atypical == b"untouched"
    assert old.class_count == 3
    call("capsedge_prediction_close", prediction)
