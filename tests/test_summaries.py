"""Reports of exports, quantizations and optimizations show themselves in a few lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import capsedge
from capsedge.datasets import ImageSet
from tests.exporters.nets import network
from tests.runtime.test_summary import shown


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported file."""
    path = tmp_path_factory.mktemp("summaries") / "net.onnx"
    capsedge.export(network("dynamic"), path)
    return path


@pytest.mark.thorough
def test_an_export(path: Path) -> None:
    report = capsedge.export(network("dynamic"), path.with_name("other.onnx"), dry_run=True)
    assert repr(report).startswith("<ExportReport other.onnx: ")
    assert "PASSED" in repr(report)
    assert "not written (dry run)" in shown(report).text


def test_an_inspection(path: Path) -> None:
    report = capsedge.inspect(path)
    assert repr(report).startswith("<Inspection net.onnx: onnx, ")
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
        path, precision="fp16", calib_data=images[:32], data=data, max_drop=100
    )
    assert repr(report).startswith("<QuantizationReport not written: fp16, ")
    assert "PASSED: accuracy" in shown(report).text


@pytest.mark.slow
def test_an_optimization(path: Path) -> None:
    report = capsedge.optimize(path, measure=0)
    assert repr(report).startswith("<OptimizationReport not written: ")
    shown(report)
