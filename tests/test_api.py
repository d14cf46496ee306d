"""The public functions: bytes, arrays, files and their reports, and one convention for gates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import capsedge
from capsedge.calibration import accuracy
from capsedge.datasets import ImageSet
from tests.exporters.nets import network
from tests.exports import Exports


@pytest.fixture(scope="module")
def model(exported: Exports) -> Path:
    return exported(network("dynamic")).path


def _labelled(model: Path, seed: int) -> ImageSet:
    """Pixels, and for labels what the model says of them."""
    images = np.random.default_rng(seed).integers(0, 256, (60, 10, 10, 1), dtype=np.uint8)
    labels = [p.labels[0].index for p in capsedge.load(model).predict(images)]
    return ImageSet("drawn", images, np.array(labels))


def test_quantize_takes_bytes_and_arrays_and_writes_nothing(model: Path) -> None:
    before = sorted(model.parent.iterdir())
    calibration = np.random.default_rng(0).integers(0, 256, (40, 10, 10), dtype=np.uint8)
    report = capsedge.quantize(
        model.read_bytes(),
        max_drop=20,
        calib_data=calibration,
        data=_labelled(model, 1),
    )
    assert report.output is None
    assert report.passed
    assert report.size == len(report.model) < model.stat().st_size
    assert json.loads(json.dumps(report.to_dict()))["output"] is None
    onnx.checker.check_model(onnx.load_model_from_string(report.model))
    assert sorted(model.parent.iterdir()) == before


def test_quantize_writes_the_file_that_is_named(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    floats = np.random.default_rng(0).random((40, 1, 10, 10), dtype=np.float32)
    report = capsedge.quantize(
        model,
        target,
        max_drop=20,
        precision="fp16",
        calib_data=floats,
        data=_labelled(model, 1),
    )
    assert report.output == target
    assert target.read_bytes() == report.model


@pytest.mark.parametrize("images", [np.zeros((4, 10), np.uint8), np.zeros((4, 10, 10))])
def test_quantize_refuses_other_arrays(model: Path, images: np.ndarray) -> None:
    with pytest.raises(capsedge.UsageError, match="The array: images are"):
        capsedge.quantize(model, calib_data=images, data=_labelled(model, 1))


def test_inspect_takes_bytes(model: Path) -> None:
    of_file = capsedge.inspect(model, batch=(1, 8))
    of_bytes = capsedge.inspect(model.read_bytes(), batch=(1, 8))
    assert isinstance(of_file, capsedge.Inspection)
    assert {**of_bytes.to_dict(), "path": str(model)} == of_file.to_dict()
    assert of_bytes.to_dict()["path"] == ""
    assert capsedge.inspect(model, batch=3).to_dict()["routing"][0]["votes"].keys() == {3}


@pytest.mark.thorough
def test_a_file_that_fails_its_gate_is_not_written_and_the_error_has_the_report(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.onnx"
    with pytest.raises(capsedge.ParityError) as caught:
        capsedge.export(network("em"), target, tolerance=(1e-12, 0.0))
    report = caught.value.report
    assert isinstance(report, capsedge.ExportReport)
    assert not report.passed
    assert any(not case.passed for case in report.parity)
    assert not target.exists()

    # As if every decision of the quantized file were another.
    right = accuracy.criterion_outputs
    monkeypatch.setattr(
        accuracy,
        "criterion_outputs",
        lambda session, *rest: {
            name: [part if session.path == model else -part for part in parts]
            for name, parts in right(session, *rest).items()
        },
    )
    with pytest.raises(capsedge.ParityError) as caught:
        capsedge.quantize(
            model,
            target,
            max_drop=5,
            calib_data=_labelled(model, 1),
            data=_labelled(model, 2),
        )
    report = caught.value.report
    assert isinstance(report, capsedge.QuantizationReport)
    assert not report.passed
    assert str(caught.value).count(f"{report.outcome.drop:.2f} points of accuracy lost") == 1
    assert report.output == tmp_path / "m.onnx.rejected"
    assert report.output.read_bytes() == report.model


def test_a_verdict_is_returned_and_raised_on_request(model: Path) -> None:
    certificate = capsedge.verify(network("dynamic", seed=5), model, limit=4)
    assert isinstance(certificate, capsedge.Certificate)
    assert not certificate.passed
    with pytest.raises(capsedge.ParityError) as caught:
        certificate.check()
    assert caught.value.report is certificate
