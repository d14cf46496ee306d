"""The images of `tools.zoo.clutter_images`: a digit over clutter, and the mask of its ink."""

from __future__ import annotations

import numpy as np

from tools.zoo.clutter_images import DIGIT, SIDE, draw


def test_the_mask_is_where_the_ink_covers_half() -> None:
    ink = np.zeros((DIGIT, DIGIT), np.uint8)
    ink[8:20, 13:15], ink[8:20, 15] = 255, 127
    pixels, mask = draw(ink, np.random.default_rng(4))
    assert pixels.shape == mask.shape == (SIDE, SIDE)
    rows, columns = np.nonzero(mask)
    assert mask.max() == 1
    assert len(rows) == 12 * 2
    assert (np.ptp(rows), np.ptp(columns)) == (11, 1)
    assert (pixels[mask == 1] == 255).all()


def test_clutter_is_as_bright_as_the_ink_and_no_class() -> None:
    random = np.random.default_rng(5)
    images = [draw(np.zeros((DIGIT, DIGIT), np.uint8), random) for _ in range(40)]
    assert not any(mask.any() for _, mask in images)
    brightest = [int(pixels.max()) for pixels, _ in images]
    assert max(brightest) > 240
    assert min(brightest) >= 64
