"""Resizing is what docs/reference/runtime.md says, to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from capsedge.runtime.images.preprocessing import resize, taps
from capsedge.spec.limits import IMAGE_SIDE

sides = st.integers(1, 300)


def specified_taps(n: int, m: int, i: int) -> tuple[int, np.ndarray]:
    """The definition, in exact fractions."""
    centre, half = Fraction((2 * i + 1) * n, 2 * m), Fraction(max(n, m), m)
    weights = {k: 1 - abs(k + Fraction(1, 2) - centre) / half for k in range(n)}
    weights = {k: w for k, w in weights.items() if w > 0}
    total = sum(weights.values())
    return min(weights), np.array([float(w / total) for w in weights.values()]).astype(np.float32)


def literal_resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The specification pixel by pixel: rows, then columns, float32 products and sums in order."""
    h, w = image.shape
    tall = np.zeros((height, w), np.float32)
    for i in range(height):
        first, weights = specified_taps(h, height, i)
        for x in range(w):
            total = np.float32(weights[0] * image[first, x])
            for j in range(1, len(weights)):
                total = np.float32(total + np.float32(weights[j] * image[first + j, x]))
            tall[i, x] = total
    if width == w:
        return tall
    return literal_resize(np.ascontiguousarray(tall.T), width, height).T


def run(image: np.ndarray, height: int, width: int) -> np.ndarray:
    def rows(first: int, last: int) -> np.ndarray:
        return image[first:last, :, None]

    return resize(*image.shape, height, width, rows)[..., 0]


@given(sides, sides, st.data())
def test_taps_are_the_definition(n: int, m: int, data: st.DataObject):
    i = data.draw(st.integers(0, m - 1))
    first, weights = taps(n, m, i)
    wanted_first, wanted = specified_taps(n, m, i)
    assert first == wanted_first
    np.testing.assert_array_equal(weights, wanted)
    assert first >= 0
    assert first + len(weights) <= n


@given(
    st.integers(1, 24), st.integers(1, 24), st.integers(1, 12), st.integers(1, 12), st.integers(0)
)
def test_resize_is_the_specification(h: int, w: int, height: int, width: int, seed: int):
    image = np.random.default_rng(seed).integers(0, 256, (h, w)).astype(np.float32)
    np.testing.assert_array_equal(run(image, height, width), literal_resize(image, height, width))


@given(sides, sides, st.integers(1, 64), st.integers(1, 64))
def test_constant_stays_constant_within_rounding(h: int, w: int, height: int, width: int):
    found = run(np.full((h, w), 200, np.float32), height, width)
    assert found.shape == (height, width)
    np.testing.assert_allclose(found, 200, rtol=1e-5)


def test_same_size_is_untouched():
    image = np.arange(35, dtype=np.float32).reshape(5, 7)
    np.testing.assert_array_equal(run(image, 5, 7), image)


@pytest.mark.parametrize("size", [(100, 80), (20, 20), (7, 300), (333, 28)])
def test_agrees_with_the_filter_of_pillow(size: tuple[int, int]):
    """The same filter as Pillow's BILINEAR, which is the usual one in training, but for rounding."""
    image = np.random.default_rng(0).integers(0, 256, size).astype(np.float32)
    pillow = Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(run(image, 28, 28), np.asarray(pillow), atol=1e-3)


def test_largest_side_stays_exact():
    """The integers behind the weights are exact as doubles for the largest side allowed."""
    for m in (1, 28, IMAGE_SIDE - 1):
        first, weights = taps(IMAGE_SIDE, m, m - 1)
        assert first + len(weights) == IMAGE_SIDE
        assert weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-4)
    # largest sum of weights: a triangle of height 2n over about 2n/m source pixels of step 2m
    assert 2 * IMAGE_SIDE * 2 * IMAGE_SIDE * 2 < 2**53
