"""The gate of a segmentation: mean Dice or mean IoU, with the masks of the data or with FP32's."""

from __future__ import annotations

import numpy as np
import pytest

import capsedge
from capsedge.calibration.accuracy import (
    DEFAULT_MAX_DROP,
    MEASURES,
    UNITS_OF_LOSS,
    Criterion,
    Gate,
    of_masks,
)
from capsedge.calibration.quantize_options import OVERLAPS
from capsedge.errors import UsageError
from tests.runtime.test_masks import segmenter

KNOWN = np.array([[[0, 0, 1, 1], [0, 0, 1, 255]]], np.uint8)
FP32 = np.array([[[0, 0, 1, 1], [0, 1, 1, 0]]], np.uint8)
INT8 = np.array([[[0, 1, 1, 1], [0, 1, 1, 0]]], np.uint8)
DATA = {"dice": (6 / 8, 6 / 7), "iou": (3 / 5, 3 / 4)}  # of INT8's foreground, and of FP32's
SOURCE = {"dice": 8 / 9, "iou": 4 / 5}


def criterion(overlap: str) -> Criterion:
    with segmenter(1) as session:
        return Criterion.of(session, overlap=overlap)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_masks_of_the_data(overlap: str) -> None:
    found = of_masks(FP32, INT8, KNOWN, criterion(overlap))
    accuracy, reference = DATA[overlap]
    assert (found.metric, found.accuracy, found.reference) == (
        overlap,
        pytest.approx(accuracy),
        pytest.approx(reference),
    )
    assert found.drop == pytest.approx(100 * (reference - accuracy))
    assert MEASURES[overlap] in str(found)
    (failure,) = Gate(1.0).failures(found)
    assert MEASURES[overlap] in failure
    assert Gate(16).passes(found)
    assert Gate(1).to_dict(found) == {"metric": overlap, "max_drop": 1}


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_masks_of_fp32(overlap: str) -> None:
    found = of_masks(FP32, INT8, None, criterion(overlap))
    assert found.metric == {"dice": "overlap", "iou": "overlap-iou"}[overlap]
    assert found.agreement == pytest.approx(SOURCE[overlap])
    assert found.drop == pytest.approx(100 * (1 - SOURCE[overlap]))
    assert f"{MEASURES[overlap]} {SOURCE[overlap]:.4f} with FP32's masks" == str(found)


def test_the_options_are_the_measures() -> None:
    assert set(MEASURES) == set(OVERLAPS)
    assert set(DEFAULT_MAX_DROP) == set(UNITS_OF_LOSS)


def test_only_masks_have_an_overlap() -> None:
    with (
        capsedge.load("digits-em") as session,
        pytest.raises(UsageError, match="does not state a segmentation"),
    ):
        Criterion.of(session, overlap="iou")


def test_the_maps_are_those_that_the_file_states() -> None:
    with segmenter(3) as session:
        assert Criterion.of(session, "mask").scores == "mask"
        with pytest.raises(UsageError, match="come from 'mask'"):
            Criterion.of(session, "images")
