"""Reports of exports, quantizations and optimizations show themselves in a few lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import capsedge
from capsedge.datasets import ImageSet
from tests.exporters.nets import network
from tests.exports import Exports
from tests.runtime.test_summary import shown


@pytest.fixture(scope="module")
def path(exported: Exports) -> Path:
    """An exported file."""
    return exported(network("dynamic")).path


def test_an_export(exported: Exports) -> None:
    report = replace(exported(network("dynamic")).report, path=None)
    assert repr(report).startswith("<ExportReport dry run: ")
    assert "PASSED" in repr(report)
    assert "not written (dry run)" in shown(report).text


def test_an_inspection(path: Path) -> None:
    report = capsedge.inspect(path)
    assert repr(report).startswith("<Inspection dynamic.onnx: onnx, ")
    assert "DynamicRouting" in shown(report).text


@pytest.mark.slow
def test_a_verification(path: Path) -> None:
    certificate = capsedge.verify(network("dynamic"), path)
    assert repr(certificate).startswith("<Certificate PASSED: ")
    shown(certificate)


@pytest.mark.slow
def test_a_quantization(path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, 10, 10, 1), dtype=np.uint8)
    data = ImageSet("noise", images[32:], np.zeros(32, np.int64))
    report = capsedge.quantize(
        path,
        precision="fp16",
        max_drop=100,
        calib_data=images[:32],
        data=data,
    )
    assert repr(report).startswith("<QuantizationReport not written: fp16, ")
    assert "PASSED: accuracy" in shown(report).text


@pytest.mark.slow
def test_an_optimization(path: Path) -> None:
    report = capsedge.optimize(path, measure=0)
    assert repr(report).startswith("<OptimizationReport not written: ")
    shown(report)
