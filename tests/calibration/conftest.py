"""A tiny network a routing family, exported once, and images for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

from capsedge.calibration.source import Source
from capsedge.datasets import ImageSet
from capsedge.exporters.to_onnx import export
from tests.exporters.nets import network

FAMILIES = ("dynamic", "em", "attention")


def pixels(count: int, seed: int, source: Source) -> ImageSet:
    """Random images, labelled with what the FP32 file says."""
    prep = source.preprocessing
    shape = (count, 10, 10, 1)
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    unlabelled = ImageSet("random", values, None, prep)
    labels = (
        np.concatenate(next(iter(source.answers(unlabelled).values()))).argmax(1).astype(np.int64)
    )
    return ImageSet("random", values, labels, prep)


@pytest.fixture(scope="session", params=FAMILIES)
def exported(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / f"{request.param}.onnx"
    model = network(request.param, stem=_stem())
    export(model, path)
    return path


def _stem():
    from capsedge.models.config import Conv

    return (Conv(16, 3, 1), Conv(16, 3, 1, 1))


@pytest.fixture(scope="session")
def source(exported: Path) -> Source:
    return Source(exported)
