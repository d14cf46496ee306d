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


def test_reports_of_files(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    report = capsedge.export(network("dynamic"), path)
    assert repr(report).startswith("<ExportReport net.onnx: ")
    assert "PASSED" in shown(report).text
    dry = capsedge.export(network("dynamic"), path, dry_run=True)
    assert "not written (dry run)" in shown(dry).text
    assert "onnx" in repr(capsedge.inspect(path))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, 10, 10, 1), dtype=np.uint8)
    smaller = capsedge.quantize(
        path,
        precision="fp16",
        calib_data=images[:32],
        data=ImageSet("noise", images[32:], np.zeros(32, np.int64)),
        max_drop=100,
    )
    assert "fp16" in repr(smaller)
    assert "PASSED: accuracy" in shown(smaller).text
    certificate = capsedge.verify(network("dynamic"), path)
    assert "PASSED" in repr(certificate)
    shown(certificate)


@pytest.mark.slow
def test_an_optimization(tmp_path: Path) -> None:
    capsedge.export(network("dynamic"), tmp_path / "net.onnx")
    report = capsedge.optimize(tmp_path / "net.onnx", measure=0)
    assert repr(report).startswith("<OptimizationReport not written: ")
    shown(report)
