"""The file of a tiny network of each routing family, and images for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

from capsedge.calibration.float_model import FloatModel
from capsedge.datasets import ImageSet
from tests.exporters.nets import wide
from tests.exports import Exports

FAMILIES = ("dynamic", "em", "attention")


def pixels(count: int, seed: int, source: FloatModel) -> ImageSet:
    """Random images, labelled with what the FP32 file says."""
    prep = source.preprocessing
    shape = (count, 10, 10, 1)
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    unlabelled = ImageSet("random", values, None, prep)
    labels = (
        np.concatenate(next(iter(source.criterion_outputs(unlabelled).values())))
        .argmax(1)
        .astype(np.int64)
    )
    return ImageSet("random", values, labels, prep)


@pytest.fixture(scope="session", params=FAMILIES)
def path(request, exported: Exports) -> Path:
    return exported(wide(request.param)).path


@pytest.fixture(scope="session")
def source(path: Path) -> FloatModel:
    return FloatModel(path)
