"""The kernel of FastConv: its stated error bound, tiles of every size, and images in batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import oracle

from .library import Array, NativeError, Operator, compute, levels, load, unwritten

pytestmark = pytest.mark.skipif(
    load() is None, reason="the native library is not built: pip install -e . with a C++ compiler"
)
BOUND = (
    2e-5  # docs/reference/operators/fast-conv.md: of the norm of the products that an output sums
)


def _random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _error(inputs: list[Array], attributes: dict[str, Any], level: str | None = None) -> float:
    """The largest error as a multiple of sqrt(Σ (x w)²) of its tile, or of the image if that is larger.

    Half a unit in the last place of a result is its own rounding: beside a large bias, FP32 has no less.
    """
    (found,) = compute("FastConv", inputs, attributes, level=level)
    wanted = oracle.fast_conv(*inputs, **attributes)
    top = np.abs(inputs[0].astype(np.float64)).max(axis=(2, 3))
    norms = (inputs[1].astype(np.float64) ** 2).sum(axis=(2, 3))
    size = np.sqrt(top**2 @ norms.T)[:, :, None, None] + 1e-30
    rounding = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64) / 2
    return float(((np.abs(found - wanted) - rounding) / size).max(initial=0.0))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_error_is_bounded(data: st.DataObject) -> None:
    draw = data.draw
    strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    kernel = (draw(st.integers(1, 11)), draw(st.integers(1, 11)))
    pads = tuple(draw(st.integers(0, kernel[k % 2] - 1)) for k in range(4))
    sizes = [kernel[k] + draw(st.integers(0, 14)) for k in (0, 1)]
    batch, channels, outputs = (draw(st.integers(1, most)) for most in (3, 40, 40))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    scales = 10.0 ** rng.uniform(-4, 4, channels)
    x = (_random(rng, batch, channels, *sizes) * scales[:, None, None]).astype(np.float32)
    weight = _random(rng, outputs, channels, *kernel)
    weight = (weight / scales[:, None, None] ** draw(st.integers(0, 1))).astype(np.float32)
    attributes = {"strides": strides, "pads": pads}
    bias = [_random(rng, outputs)] if draw(st.booleans()) else []
    assert _error([x, weight, *bias], attributes, draw(st.sampled_from(levels()))) <= BOUND


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("images", [1, 2, 5])
def test_images_of_a_batch(level: str, images: int) -> None:
    """A larger batch may take larger tiles, whose results differ by roundings."""
    rng = np.random.default_rng(images)
    weight = _random(rng, 70, 33, 9, 9)
    x = _random(rng, images, 33, 21, 20)
    attributes = {"strides": (2, 2), "pads": (0, 0, 0, 0)}
    (together,) = compute("FastConv", [x, weight], attributes, level=level)
    size = float(np.abs(together).max())
    for n in range(images):
        (alone,) = compute("FastConv", [x[n : n + 1], weight], attributes, level=level)
        np.testing.assert_allclose(together[n : n + 1], alone, atol=BOUND * size)


def test_the_first_runs_may_be_at_the_same_time() -> None:
    """Constant weights are packed once, by whichever run comes first, for each tile."""
    rng = np.random.default_rng(2)
    weight = _random(rng, 64, 64, 9, 9)
    images = [_random(rng, n, 64, 20, 20) for n in (1, 8, 1, 8)]
    attributes = {"strides": (2, 2), "pads": (0, 0, 0, 0)}
    wanted = [compute("FastConv", [x, weight], attributes)[0] for x in images]
    shared = Operator("FastConv", attributes)
    shared.constant(1, weight)

    def run(x: Array) -> Array:
        y = unwritten((len(x), 64, 6, 6), np.float32)
        shared.run([x, weight], [y])
        return y

    with ThreadPoolExecutor(len(images)) as pool:
        for found, alone in zip(pool.map(run, images), wanted, strict=True):
            np.testing.assert_array_equal(found, alone)


def test_not_a_number_stays_in_its_image() -> None:
    rng = np.random.default_rng(0)
    x, weight = _random(rng, 3, 8, 12, 12), _random(rng, 9, 8, 5, 5)
    attributes = {"strides": (1, 1), "pads": (2, 2, 2, 2)}
    (clean,) = compute("FastConv", [x, weight], attributes)
    x[1, 2, 5, 5] = np.nan
    (found,) = compute("FastConv", [x, weight], attributes)
    np.testing.assert_array_equal(found[[0, 2]], clean[[0, 2]])
    assert np.isnan(found[1, :, 5, 5]).all()


def test_weights_too_large_to_transform() -> None:
    """Outputs are padded to whole vectors, so a large window of one output takes many times its memory."""
    large = np.zeros((1, 1, 12000, 12000), np.float32)  # never touched
    with pytest.raises(NativeError, match=r"is too large: at most 2\^31 elements when transformed"):
        compute("FastConv", [large, large], {"strides": (1, 1), "pads": (0, 0, 0, 0)})
