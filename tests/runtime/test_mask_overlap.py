"""Dice, IoU and changed pixels of masks."""

from __future__ import annotations

import numpy as np
import pytest

from capsedge.runtime.session.masks import MaskOverlap, overlap_rows

REFERENCE = np.array([[0, 0, 1, 1], [0, 0, 1, 255]], np.uint8)
OTHER = np.array([[0, 1, 1, 1], [0, 0, 0, 0]], np.uint8)


def test_overlap_of_two_classes():
    overlap = MaskOverlap(("back", "front"), background=True)
    overlap.update([REFERENCE], [OTHER])
    assert (overlap.images, overlap.pixels, overlap.changed) == (1, 7, 2)
    assert overlap.dice == pytest.approx([6 / 8, 4 / 6])
    assert overlap.iou == pytest.approx([3 / 5, 2 / 4])
    assert overlap.mean_dice == pytest.approx(4 / 6)
    assert overlap.mean_iou == pytest.approx(2 / 4)


def test_a_class_that_is_in_neither_mask_does_not_count():
    overlap = MaskOverlap(("a", "b", "c"))
    overlap.update([REFERENCE, REFERENCE], [REFERENCE, REFERENCE])
    document = overlap.to_dict()
    assert document["mean_dice"] == 1
    assert document["classes"][2] == {"label": "c", "dice": None, "iou": None}
    assert overlap_rows(document)[2:] == [("c", "-", "-"), ("mean", "1.0000", "1.0000")]


def test_masks_without_foreground_agree():
    overlap = MaskOverlap(("back", "front"), background=True)
    overlap.update([np.zeros((2, 2), np.uint8)], [np.zeros((2, 2), np.uint8)])
    assert overlap.mean_dice == 1
