"""The trained digit models on all MNIST test images: the figures of docs/explanation/quantization.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the reference is eager: pip install 'capsedge[export]'")

from capsedge.calibration import accuracy
from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.calibration.quantize import split
from capsedge.datasets import read_split
from capsedge.exporters.export import export
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.evaluate import predict_all
from capsedge.runtime.load import load_bytes
from capsedge.runtime.zoo import ROUTINGS, zoo_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_against_pytorch(routing: str, mnist: Path, tmp_path: Path) -> None:
    model = load_checkpoint(zoo_checkpoint(f"digits-{routing}"))
    test = read_split(mnist, "test", model.config.preprocessing)
    eager = predict_all(model, test).argmax(1).numpy()
    right = float((eager == test.labels).mean())
    export(model, tmp_path / "m.onnx")
    source = FloatModel(tmp_path / "m.onnx")
    splits = split(source, mnist, None, 512)
    assert len(splits.evaluation) == 10_000
    table = source.calibrate(splits.calibration, "mse", None)
    int8, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    half, _ = source.to_fp16(splits.calibration)
    for made, agreement in ((int8, 0.998), (half, 0.9998)):
        session = load_bytes(made.SerializeToString())
        found = np.concatenate(
            next(
                iter(
                    accuracy.criterion_outputs(
                        session, splits.evaluation, source.criterion
                    ).values()
                )
            )
        ).argmax(1)
        assert float(np.mean(found == eager)) >= agreement
        assert right - float(np.mean(found == test.labels)) <= 0.001 + 1e-9
