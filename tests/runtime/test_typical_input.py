"""The criterion for nothing to see, and the hint to invert."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.metadata.typical_input import (
    REASONS,
    TYPICAL_INPUT_KEY,
    Measurements,
    TypicalInput,
    _span,
    measure,
    spans_of,
)
from capsedge.runtime.session.predictions import INVERT, KEEP, to_invert
from capsedge.spec.limits import TYPICAL_INPUT_BYTES
from tests.runtime.models import metadata

RNG = np.random.default_rng(5)


def strokes(count: int, side: int = 12) -> np.ndarray[Any, Any]:
    """Light strokes in the middle of black images ``[N, 1, side, side]``, from 0 to 1."""
    images = np.zeros((count, 1, side, side), np.float32)
    for image in images:
        row, column = RNG.integers(2, side - 6, 2)
        image[0, row : row + RNG.integers(3, 5), column : column + 2] = RNG.uniform(0.6, 1)
    return images


TYPICAL = strokes(300)
CRITERION = spans_of(TYPICAL)


def by_definition(image: np.ndarray[Any, Any], layout: str) -> Measurements:
    """The formulas of docs/reference/metadata.md, value by value in exactly rounded sums."""
    planes = image if layout == "NCHW" else image.transpose(2, 0, 1)
    values = [float(v) for v in planes.ravel()]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((v - mean) ** 2 for v in values) / len(values)
    contrast = math.sqrt(variance)
    steps, frame = [], []
    for plane in planes.astype(float):
        height, width = plane.shape
        for y in range(height):
            for x in range(width):
                steps += [plane[y, x + 1] - plane[y, x]] if x + 1 < width else []
                steps += [plane[y + 1, x] - plane[y, x]] if y + 1 < height else []
                if y in (0, height - 1) or x in (0, width - 1):
                    frame.append(plane[y, x])
    around = math.fsum(frame) / len(frame)
    spread = math.sqrt(math.fsum((v - around) ** 2 for v in frame) / len(frame))
    roughness = math.fsum(d * d for d in steps) / len(steps) / (2 * variance)
    return Measurements(contrast, mean, roughness, (around - mean) / contrast, spread / contrast)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((1, 8, 8), "NCHW"), ((3, 5, 9), "NCHW"), ((9, 5, 3), "NHWC"), ((3, 3, 1), "NHWC")],
)
def test_measurements_are_those_of_the_definition(shape: tuple[int, ...], layout: str) -> None:
    for scale in (1.0, 1e-3, 1e6):
        image = (RNG.normal(0.3, 1, shape) * scale).astype(np.float32)
        found, wanted = measure(image, layout), by_definition(image, layout)
        for name in REASONS:
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-9)


def test_white_noise_has_roughness_one() -> None:
    image = RNG.normal(0, 1, (1, 200, 200)).astype(np.float32)
    assert measure(image).roughness == pytest.approx(1, abs=0.03)


def test_typical_images_have_something_to_see() -> None:
    assert [CRITERION.atypical_reason(measure(image)) for image in TYPICAL] == [""] * len(TYPICAL)
    fresh = [CRITERION.atypical_reason(measure(image)) for image in strokes(300)]
    assert fresh.count("") >= 295
    assert CRITERION.images == 300


def test_few_images_give_wider_spans() -> None:
    """Of new images of the same kind, at most 0.5 % are atypical, also for ranges of few images."""
    new = [measure(image) for image in strokes(1000)]
    for count in (120, 200, 300):
        found = [
            sum(bool(criterion.atypical_reason(each)) for each in new)
            for criterion in (spans_of(strokes(count)) for _ in range(4))
        ]
        assert np.mean(found) <= 0.005 * len(new), (count, found)


def test_many_images_give_little_wider_spans() -> None:
    """Of many values, the largest counts, so the 5 % remain."""
    values = RNG.exponential(1, 50_000)
    _, high = _span("level", values)
    assert high == pytest.approx(values.max() + 0.05 * np.ptp(values), rel=1e-4)
    few = values[:100]
    assert _span("level", few)[1] > few.max() + 0.05 * np.ptp(few)


def test_many_images_with_empty_frames_give_no_wider_spans() -> None:
    """Their tail is not exponential: for MNIST, an estimate ends at twice the largest value."""
    values = np.zeros(60_000)
    values[:300] = np.linspace(0.3, 0.6, 300)
    assert _span("frame_contrast", values) == (0.0, pytest.approx(1.05 * 0.6))


@pytest.mark.parametrize("grey", [0.0, 0.1, 0.5, 100 / 255, 1.0])
def test_a_blank_image(grey: float) -> None:
    """Also where rounding leaves a constant image a little contrast."""
    image = np.full((1, 12, 12), grey, np.float32)
    assert CRITERION.atypical_reason(measure(image)) == "less contrast than in any training image"


def test_reasons() -> None:
    noise = 0.5 * RNG.random((1, 12, 12)).astype(np.float32)
    assert "rougher" in CRITERION.atypical_reason(measure(noise))
    assert "lighter frame" in CRITERION.atypical_reason(measure(1 - TYPICAL[0]))
    ramp = np.broadcast_to(np.linspace(0, 0.6, 12, dtype=np.float32), (1, 12, 12))
    assert "smoother" in CRITERION.atypical_reason(measure(ramp))
    middle = Measurements(*(sum(getattr(CRITERION, n)) / 2 for n in (
        "contrast", "level", "roughness", "frame_level", "frame_contrast"
    )))  # fmt: skip
    for name, words in REASONS.items():
        low, high = getattr(CRITERION, name)
        for value, word in ((low - 1, words[0]), (high + 1, words[1])):
            reason = CRITERION.atypical_reason(replace(middle, **{name: value}))
            assert reason == f"{word} than in any training image"
        for end in (low, high):
            assert CRITERION.atypical_reason(replace(middle, **{name: end})) == ""


def test_blank_images_do_not_widen_the_spans() -> None:
    blanks = np.full((50, 1, 12, 12), 100 / 255, np.float32)
    assert spans_of(np.concatenate([blanks, TYPICAL])) == CRITERION


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (TYPICAL[:99], "99 images are not blank; 100 are needed"),
        (np.zeros((200, 1, 8, 8), np.float32), "0 images"),
        (RNG.random((200, 1, 2, 8)).astype(np.float32), "3 pixels a side"),
    ],
)
def test_images_that_say_nothing(images: np.ndarray[Any, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        spans_of(images)


def described(**changes: Any) -> ModelMetadata:
    return metadata(preprocessing=Preprocessing(12, 12, 1), typical_input=CRITERION, **changes)


def test_a_file_states_it() -> None:
    said = described().to_properties()
    assert ModelMetadata.from_properties(said) == described()
    assert len(said[TYPICAL_INPUT_KEY]) < TYPICAL_INPUT_BYTES // 4
    del said[TYPICAL_INPUT_KEY]
    assert ModelMetadata.from_properties(said) == replace(described(), typical_input=None)


LIGHT, DARK = 1 - TYPICAL[0], TYPICAL[0]


@pytest.mark.parametrize("criterion", [CRITERION, None])
@pytest.mark.parametrize(
    ("image", "score", "wanted"),
    [
        (LIGHT, 0.3, True),
        (LIGHT, 0.0, True),
        (LIGHT, 0.5, False),
        (LIGHT, 0.9, False),
        (DARK, 0.3, False),
        (np.ones((1, 12, 12), np.float32), 0.0, False),
        (np.zeros((1, 12, 12), np.float32), 0.0, False),
    ],
)
def test_the_hint(
    image: np.ndarray[Any, Any], score: float, wanted: bool, criterion: TypicalInput | None
) -> None:
    found = None if criterion is None else measure(image)
    assert to_invert(image, "NCHW", score, criterion, found) is wanted


def test_no_hint_for_a_model_of_dark_on_light() -> None:
    reverse = spans_of(1 - TYPICAL)
    assert not to_invert(LIGHT, "NCHW", 0.1, reverse, measure(LIGHT))


def test_light_noise_is_no_writing() -> None:
    noise = np.clip(RNG.normal(0.8, 0.3, (1, 12, 12)), 0, 1).astype(np.float32)
    assert not to_invert(noise, "NCHW", 0.1, CRITERION, measure(noise))


def test_hints_name_the_option() -> None:
    assert "try --invert" in INVERT
    assert "without --invert" in KEEP
