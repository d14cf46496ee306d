"""Files for other runtimes by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from capsedge import cli
from capsedge.errors import UsageError
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.graph.ir import shapes_of
from capsedge.graph.target_runtimes import TARGETS, fix_batch, resolve
from capsedge.models.checkpoint import save_checkpoint
from tests.exports import Exports

from .evaluate import run
from .nets import EXTRAS, network
from .test_portable import check_forms

IMAGES = np.random.default_rng(9).random((4, 1, 10, 10)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_a_file_for_a_runtime(tmp_path: Path, target: str) -> None:
    report = export(network("em"), tmp_path / "m.onnx", ExportOptions(target=target))
    model = onnx.load(tmp_path / "m.onnx")
    batch = TARGETS[target].batch
    assert report.ops == "portable"
    assert {o.domain for o in model.opset_import} == {""}
    assert not model.functions
    assert report.inputs["images"][0] == (batch or "N")
    assert report.opset == TARGETS[target].opset
    check_forms(model, batch)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (("litert", "auto", 20, None), ("portable", 20, 1)),
        (("litert", "portable", 18, 8), ("portable", 18, 8)),
        (("mnn", "auto", 19, None), ("portable", 19, 1)),
        (("openvino", "auto", 20, None), ("portable", 20, None)),
        (("openvino", "auto", 20, 2), ("portable", 20, 2)),
    ],
)
def test_what_is_asked_for_stays(asked: tuple, wanted: tuple) -> None:
    assert resolve(*asked) == wanted


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("coreml", "auto", 20, None), "openvino, litert, mnn"),
        (("mnn", "fused", 20, None), "'fused'"),
        (("litert", "auto", 21, None), "opset 21"),
    ],
)
def test_contradictions_are_refused(asked: tuple, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(*asked)


def _command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["capsedge", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


@pytest.mark.thorough
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, file = tmp_path / "tiny.safetensors", tmp_path / "m.onnx"
    save_checkpoint(network("dynamic"), checkpoint)
    options = ["--checkpoint", checkpoint, "-o", file, "--target", "litert"]
    for more in (["--ops", "fused"], ["--opset", "21"]):
        assert _command(monkeypatch, *options, *more) == 2
        assert "A file for litert cannot" in capsys.readouterr().err
    assert not file.exists()
    assert _command(monkeypatch, *options, "--batch", "2") == 0
    assert onnx.load(file).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.parametrize("family", ["dynamic", "em", "attention"])
def test_the_batch_of_a_file_can_be_fixed_later(exported: Exports, family: str) -> None:
    made = exported(network(family), ops="portable", extra_outputs=EXTRAS[family])
    model = onnx.load(made.path)
    fixed = fix_batch(model, 2)
    onnx.checker.check_model(fixed, full_check=True)
    assert None not in shapes_of(fixed)["images"]
    wanted = run(model, {"images": IMAGES[:2]})
    for name, found in run(fixed, {"images": IMAGES[:2]}).items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-6)
    assert fix_batch(fixed, 3).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
