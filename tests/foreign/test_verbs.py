"""Every verb on files of other tools: no traceback, no dead end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

import capsedge
from capsedge.cli import app
from tests.foreign.files import MADE, File

QUICK = ("two_inputs_and_outputs", "named_dimensions")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("foreign")
    for name, make in MADE.items():
        made = make()
        onnx.save(made.model, place / f"{name}.onnx")
        np.savez(place / f"{name}.npz", **made.data)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(place / "image.png")
    return place


def _run(*words: object) -> tuple[int, str, capsedge.CapsedgeError | None]:
    """Exit code, standard output, and the error, which is one of ours."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    error = result.exception
    if isinstance(error, capsedge.CapsedgeError):
        assert error.what
        assert error.command, f"{words[0]}: {error} has no advice"
        return int(error.exit_code), result.stdout, error
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return result.exit_code, result.stdout, None


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_quantize(folder: Path, tmp_path: Path, name: str, precision: str) -> None:
    file: File = MADE[name]()
    out = tmp_path / "q.onnx"
    code, text, error = _run(
        "quantize", folder / f"{name}.onnx", "--calib-data", folder / f"{name}.npz", "--precision", precision,
        "--max-drop", 5, "--max-error", 50, "-o", out,
    )  # fmt: skip
    if file.refused and (
        precision == "int8" or file.refused.startswith(("no layer", "Its weights"))
    ):
        assert error is not None
        assert file.refused in str(error)
        assert not out.exists()
        return
    assert code == 0, error
    assert "judged by" in text
    source, made = capsedge.load(folder / f"{name}.onnx"), capsedge.load(out)
    assert [p.name for p in source.inputs] == [p.name for p in made.inputs]
    record = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert f'"precision": "{precision}"' in record["capsedge_quantization"]
    assert _run("quantize", out, "--calib-data", folder / f"{name}.npz")[0] == 6  # already is


@pytest.mark.parametrize("name", MADE)
def test_inspect_and_forecast(folder: Path, name: str) -> None:
    code, _, error = _run("inspect", folder / f"{name}.onnx")
    assert code == 0, error
    code, text, error = _run("inspect", folder / f"{name}.onnx", "--forecast")
    assert code in (0, 5), error
    assert code == 5 or "traffic" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MADE]
)
def test_profile(folder: Path, name: str) -> None:
    """Starts a process for each."""
    session = capsedge.load(folder / f"{name}.onnx")
    batch = session.backend.batches.fixed or 1
    code, _, error = _run(
        "profile", folder / f"{name}.onnx", "--batch", batch, "--warmup", 0, "--duration", 0,
        "--iterations", 1,
    )  # fmt: skip
    if name == "named_dimensions":
        assert code == 2
        assert error is not None
        assert "--inputs" in error.command
        code, _, error = _run(
            "profile", folder / f"{name}.onnx", "--inputs", folder / f"{name}.npz", "--warmup", 0,
            "--duration", 0, "--iterations", 1,
        )  # fmt: skip
    assert code == 0, error


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", MADE)
def test_infer_and_verify_say_what_they_need(folder: Path, name: str) -> None:
    for words in (
        ("infer", "--model", folder / f"{name}.onnx", folder / "image.png"),
        ("verify", folder / f"{name}.onnx"),
    ):
        code, _, error = _run(*words)
        assert code in (2, 6), error
        assert error is not None


@pytest.mark.thorough
def test_a_loop_is_not_booked_to_the_layer_before_it(tmp_path: Path) -> None:
    """Routing that a user wrote as a loop, after a capsule operator and between layers with weights."""
    torch = pytest.importorskip("torch")
    from capsedge.models.ops import squash
    from capsedge.runtime.onnx_file.layer_map import locate
    from capsedge.runtime.onnx_file.structure import read_structure

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.primary = torch.nn.Conv2d(1, 16, 3, stride=2)
            self.weight_of_votes = torch.nn.Parameter(0.1 * torch.randn(1, 32, 3, 8, 8))
            self.last = torch.nn.Linear(24, 3)

        def forward(self, images):
            u = squash(self.primary(images).relu().permute(0, 2, 3, 1).reshape(-1, 32, 8))
            votes = (self.weight_of_votes @ u[:, :, None, :, None]).squeeze(-1)
            logits = torch.zeros_like(votes[..., :1])
            for _ in range(2):
                poses = (logits.softmax(2) * votes).sum(1, keepdim=True)
                logits = logits + (votes * poses).sum(-1, keepdim=True)
            return self.last(poses.flatten(1))

    path = tmp_path / "net.onnx"
    capsedge.export(Net().eval(), path, example=torch.rand(2, 1, 10, 10))
    model = read_structure(path)
    found = dict(
        zip([n.outputs[0] for n in model.graph.nodes], locate(model, model.graph), strict=True)
    )
    kinds = {n.outputs[0]: n.op for n in model.graph.nodes}
    for name, place in found.items():
        if kinds[name] in ("Conv", "Relu", "Squash"):
            assert (place.layer, place.group) == ("primary", "stem"), name
        if kinds[name] in ("Softmax", "ReduceSum", "Mul"):
            assert (place.layer, place.group) == (kinds[name], ""), name
    assert [p.group for p in found.values() if p.layer == "last"] == [""]


@pytest.mark.thorough
def test_forecast_of_a_portable_file_of_an_own_module(tmp_path: Path) -> None:
    """The rows of a product may be a dimension that only this product names."""
    torch = pytest.importorskip("torch")
    from capsedge.runtime.onnx_file.forecast import forecast
    from tests.exporters.own_nets import Operators

    path = tmp_path / "net.onnx"
    example = torch.rand(2, 1, 10, 10)
    capsedge.export(Operators().eval(), path, example=example, ops="portable")
    assert forecast(path, 8).traffic > 4 * forecast(path, 1).traffic
