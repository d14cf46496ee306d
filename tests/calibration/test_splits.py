"""What calibration images must be, and that none is evaluated on."""

from __future__ import annotations

import numpy as np
import pytest

from capsedge.calibration.collect import check_calibration, check_disjoint
from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing

PREP = Preprocessing(height=10, width=10, channels=1)


def _pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 10, 10), dtype=np.uint8)


def test_one_or_constant_images_are_refused_and_few_are_warned_of() -> None:
    def some(pixels: np.ndarray) -> ImageSet:
        return ImageSet("test", pixels[..., None], None, PREP)

    with pytest.raises(UsageError, match="One image"):
        check_calibration(some(_pixels(1)))
    with pytest.raises(UsageError, match="3 images are not enough") as caught:
        check_calibration(some(_pixels(1)), subject=3)
    assert "Of the 3, 1 is left for calibration" in caught.value.why
    with pytest.raises(UsageError, match="constant"):
        check_calibration(some(np.full((40, 10, 10), 7, np.uint8)))
    assert "only 5" in check_calibration(some(_pixels(5)))[0]
    assert check_calibration(some(_pixels(40))) == []


def test_overlap_is_found_whatever_the_storage() -> None:
    pixels = _pixels(6)
    one = ImageSet("a", pixels[:4, ..., None], None, PREP)
    floats = (pixels[3:] * np.float32(1 / 255))[:, None]
    other = ImageSet("b", next(ImageSet("", pixels[3:, ..., None], None, PREP).batches(9)),
                          None, None)  # fmt: skip
    assert floats.shape == other.images.shape
    with pytest.raises(UsageError, match="1 of 3 evaluation images"):
        check_disjoint(one, other)
    assert len(other.without(one)) == 2
    check_disjoint(one, other.without(one))
