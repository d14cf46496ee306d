"""Floats that callers give: pixels from 0 to 1, or a prepared input within the range of its model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import capsedge
from capsedge.errors import CapsedgeError, ShapeError, UsageError
from capsedge.runtime.images.inputs import declared_range
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.runtime.models import SIDE
from tests.runtime.pictures import COLOUR, LEFT, PLAIN, inputs, quick

# Prepared floats

preprocessings = st.builds(
    Preprocessing,
    height=st.integers(2, 9),
    width=st.integers(2, 9),
    channels=st.just(3),
    scale=st.sampled_from([1 / 255, 1.0, 2 / 255]),
    mean=st.sampled_from([(0.0,), (0.5,), (0.485, 0.456, 0.406)]),
    std=st.sampled_from([(1.0,), (0.5,), (0.229, 0.224, 0.225), (-1.0,)]),
    resize=st.sampled_from(["stretch", "pad", "crop", "center"]),
    per_image=st.sampled_from(["", "min-max"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    order=st.sampled_from(["RGB", "BGR"]),
)
pictures = hnp.arrays(np.uint8, st.tuples(st.integers(5, 9), st.integers(5, 9), st.just(3)))


@quick
@given(preprocessing=preprocessings, pixels=pictures)
@example(
    Preprocessing(4, 4, 3, 1.0, per_image="standardize"),
    np.eye(5, dtype=np.uint8)[..., None].repeat(3, 2),
)
def test_what_prepare_makes_is_within_the_declared_range(
    preprocessing: Preprocessing, pixels: np.ndarray
) -> None:
    ready = prepare(pixels, preprocessing)
    low, high = declared_range(preprocessing)
    for given_, layout in (
        (ready, None),
        (ready[None], None),
        (ready.transpose(1, 2, 0) if preprocessing.layout == "NCHW" else ready, "HWC"),
    ):
        (found,) = inputs(given_, preprocessing, prepared=True, layout=layout)
        np.testing.assert_array_equal(found, ready)
    for value in (low - (high - low), high + (high - low)):
        wrong = ready.copy()
        wrong.flat[0] = value
        with pytest.raises(UsageError, match=r"has values from (.|\n)*preprocessing gives values"):
            inputs(wrong, preprocessing, prepared=True)


@pytest.mark.parametrize("shape", [(2, 1, SIDE, SIDE), (1, SIDE, SIDE)])
def test_floats_out_of_range_say_what_mends_it(
    session: capsedge.Session, shape: tuple[int, ...]
) -> None:
    images = np.broadcast_to(LEFT, shape).astype(np.float32)
    with pytest.raises(
        UsageError, match=r"values from 0 to 255(.|\n)*Pass uint8, or divide by 255"
    ):
        session.predict(images)
    with pytest.raises(UsageError, match=r"values from -1 to 1(.|\n)*Session.prepare"):
        session.predict(images / 127.5 - 1)
    assert session.predict(images / 255)[0].label == "left"
    session.run(images.reshape(-1, 1, SIDE, SIDE))  # takes any values


@pytest.mark.parametrize(
    ("most", "said"), [(255, "divide by 255"), (65535, "divide by 65535"), (1e6, "largest")]
)
def test_float_pixels_out_of_range(most: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        inputs(np.linspace(0, most, 64).reshape(8, 8))
    with pytest.raises(UsageError, match="prepared=True"):
        inputs(np.linspace(-1, 1, 64).reshape(8, 8))


def test_floats_that_are_pixels_or_prepared_are_asked_about() -> None:
    """ToTensor without Normalize looks like a prepared input, and is not one."""
    floats = np.random.default_rng(0).random((2, 3, 8, 8))
    with pytest.raises(UsageError, match=r"prepared=False for pixels, or prepared=True"):
        inputs(floats, COLOUR)
    pixels = inputs(floats, COLOUR, prepared=False)
    np.testing.assert_array_equal(pixels, [prepare(x.transpose(1, 2, 0), COLOUR) for x in floats])
    np.testing.assert_array_equal(inputs(floats, COLOUR, prepared=True), floats)
    ready = np.stack(pixels)
    np.testing.assert_array_equal(inputs(ready, COLOUR), ready)  # negative values leave one reading
    with pytest.raises(ShapeError, match=r"Prepared, it is floats \[3, 8, 8\]"):
        inputs(floats[:, :, :5], COLOUR, prepared=True)


def test_inverting(session: capsedge.Session) -> None:
    floats = LEFT[None, None] / 255
    assert session.predict(floats, invert=True)[0].label == "right"
    ready = np.stack(inputs(np.zeros((1, 8, 8, 3), np.uint8), COLOUR))
    for options in ({}, {"prepared": True}):
        with pytest.raises(UsageError, match="cannot be inverted"):
            inputs(ready, COLOUR, invert=True, **options)


@quick
@given(
    array=hnp.arrays(
        st.one_of(
            hnp.integer_dtypes(),
            hnp.unsigned_integer_dtypes(),
            hnp.floating_dtypes(),
            hnp.boolean_dtypes(),
        ),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9),
    ),
    preprocessing=st.sampled_from([PLAIN, COLOUR, Preprocessing(4, 4, 5)]),
    layout=st.sampled_from([None, "HW", "NHWC", "CHW"]),
    prepared=st.sampled_from([None, True, False]),
)
def test_any_array_is_read_or_refused(
    array: np.ndarray, preprocessing: Preprocessing, layout: str | None, prepared: bool | None
) -> None:
    try:
        found = inputs(array, preprocessing, layout=layout, prepared=prepared)
    except CapsedgeError:
        return
    assert all(image.shape == preprocessing.shape for image in found)
