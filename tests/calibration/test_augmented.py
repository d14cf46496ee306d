"""Augmented copies: of the same form and range, alike for the same seed, and stronger by strength."""

from __future__ import annotations

import numpy as np
import pytest

from capsedge.optimization.cascade_pair import STRENGTHS, Augmentation

IMAGES = np.random.default_rng(0).random((6, 2, 12, 10), np.float32)
IMAGES[:, :, :3] = 0


def _copy(batch: np.ndarray, strength: float = 1.0, **options: object) -> np.ndarray:
    (found,) = Augmentation(strength, **options).copies([batch])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("shape", [(3, 1, 12, 10), (3, 12, 10, 1), (3, 7), (3, 5, 4), (3, 1, 1, 1)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.int64])
def test_form_and_range_stay(shape: tuple[int, ...], kind: type):
    batch = (np.random.default_rng(1).random(shape) * 200).astype(kind)
    found = _copy(batch)
    assert (found.shape, found.dtype) == (shape, kind)
    axes = tuple(range(1, len(shape)))
    assert (found.min(axes) >= batch.min(axes)).all()
    assert (found.max(axes) <= batch.max(axes)).all()


def test_the_layout_names_the_sides():
    first = _copy(IMAGES)
    last = _copy(np.moveaxis(IMAGES, 1, 3), channels_last=True)
    # the noise is drawn in another order; without it they are the same
    assert np.abs(first - np.moveaxis(last, 3, 1)).mean() < np.abs(first - IMAGES).mean()


def test_a_seed_gives_the_same_copies():
    assert np.array_equal(_copy(IMAGES, seed=3), _copy(IMAGES, seed=3))
    assert not np.array_equal(_copy(IMAGES, seed=3), _copy(IMAGES, seed=4))
    assert np.array_equal(_copy(IMAGES, strength=0.0), IMAGES)


def test_strengths_go_down_and_change_less():
    assert list(STRENGTHS) == sorted(STRENGTHS, reverse=True)
    changes = [float(np.abs(_copy(IMAGES, s) - IMAGES).mean()) for s in STRENGTHS]
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] > 0


def test_structures_move_but_stay():
    """A bright square is moved and turned by at most what the augmentation allows; its ink stays."""
    batch = np.zeros((20, 1, 28, 28), np.float32)
    batch[:, :, 10:18, 10:18] = 1
    found = _copy(batch, 0.5)
    ink = found.sum((1, 2, 3)) / batch.sum((1, 2, 3))
    assert ((ink > 0.5) & (ink < 2.0)).all()
    rows = (found * np.arange(28)[:, None]).sum((1, 2, 3)) / found.sum((1, 2, 3))
    assert (np.abs(rows - 13.5) < 4).all()
    assert np.ptp(rows) > 0.5
