"""The scores of networks as students write them: chosen before the long work, added where missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="modules are PyTorch's")
pytest.importorskip("onnxscript")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import capsedge  # noqa: E402
from capsedge.errors import CapsedgeError, UsageError  # noqa: E402
from capsedge.exporters import export  # noqa: E402
from capsedge.runtime.load import load  # noqa: E402
from capsedge.runtime.metadata.metadata import Outputs  # noqa: E402
from tests.exports import arguments  # noqa: E402

CLASSES = ("a", "b", "c", "d")
EXAMPLE = torch.zeros(2, 1, 8, 8)
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8)).astype(np.uint8)


def squash(s: Tensor) -> Tensor:
    """A squash whose lengths differ on large inputs too, where those of Sabour et al. all round to 1.

    Processors round them differently, and a class by argmax would be another one.
    """
    return s / (1 + (s**2).sum(-1, keepdim=True).sqrt())


class Caps(nn.Module):
    """Class capsules without routing, to be quick."""

    def __init__(self, classes: int = len(CLASSES)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(64, classes * 6)
        self.decoder = nn.Linear(classes * 6, 64)
        self.classes = classes

    def capsules(self, x: Tensor) -> Tensor:
        return squash(self.layer(x.flatten(1)).view(-1, self.classes, 6))


class Typical(Caps):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v = self.capsules(x)
        mask = F.one_hot(v.norm(dim=-1).argmax(1), self.classes).float()
        return v, self.decoder((v * mask[..., None]).flatten(1)).view(-1, 1, 8, 8), mask


class Keyed(Caps):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        v = self.capsules(x)
        y = torch.eye(self.classes).index_select(0, v.norm(dim=-1).max(1).indices)
        return {"y": y, "masked": v * y[..., None], "v": v}


class Results(NamedTuple):
    poses: Tensor
    found: Tensor


class Named(Caps):
    def forward(self, x: Tensor) -> Results:
        v = self.capsules(x)
        return Results(v, v.norm(dim=-1).argmax(1))


class KeepDim(Caps):
    def forward(self, x: Tensor) -> Tensor:
        return self.capsules(x).norm(dim=-1, keepdim=True)


class Softmaxed(Caps):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = F.softmax(10 * self.capsules(x).norm(dim=-1), dim=1)
        return torch.eye(self.classes)[p.argmax(1)], p


class Ambiguous(Caps):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v = self.capsules(x)
        return v, self.head(v.flatten(1))


class OnlyMask(Caps):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(self.classes)[self.capsules(x).norm(dim=-1).argmax(1)]


def exported(module: nn.Module, path: Path, **options: Any) -> Any:
    names = CLASSES[: getattr(module, "classes", 4)]
    options = {"class_names": names, "preprocessing": {"scale": 1 / 255}} | options
    return capsedge.export(module, path, example=EXAMPLE, **arguments(**options))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "scores", "kind"),
    [
        (Typical(), "lengths", "length"),
        (Typical(2), "lengths", "length"),
        (Keyed(), "lengths", "length"),
        (Named(), "lengths", "length"),
        (KeepDim(), "scores", "length"),
        (Softmaxed(), "output_1", "probability"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_the_answer_is_that_of_the_module(
    tmp_path: Path, module: nn.Module, scores: str, kind: str
) -> None:
    report = exported(module, tmp_path / "m.onnx")
    assert (report.scores.output, report.scores.kind) == (scores, kind)
    session = load(tmp_path / "m.onnx")
    x = session.prepare(IMAGES[0])
    batch = np.stack([session.prepare(image) for image in IMAGES])
    assert x.shape == batch.shape[1:]
    with torch.no_grad():
        found = module(torch.from_numpy(batch))
        if scores == "output_1":
            wanted = found[1]
        elif scores == "scores":
            wanted = found[..., 0]
        else:
            wanted = module.capsules(torch.from_numpy(batch)).norm(dim=-1)
    predictions = session.predict(batch, prepared=True)
    answered = np.stack([p.scores for p in predictions])
    assert np.allclose(answered, wanted.numpy(), atol=1e-5)
    assert answered.max() < 0.999
    assert session.metadata.chosen_scores.reason == report.scores.reason
    from capsedge.verification.verify import verify

    arrays = {"x": batch}
    assert verify(module, session, inputs=arrays).passed


def test_it_is_asked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: Any) -> None:
        raise AssertionError("the long work began")

    monkeypatch.setattr(export, "to_graph", capture)
    with pytest.raises(UsageError) as asked:
        exported(Ambiguous(), tmp_path / "m.onnx")
    assert "--describe scores=output_0" in asked.value.command
    assert "--describe scores=output_1" in asked.value.command
    assert "return v.norm(dim=-1)" in asked.value.command
    for options, said in (
        ({"class_names": "abc"[:3]}, "a list"),
        ({"class_names": CLASSES[:3]}, "scores of 3 classes"),
        ({"outputs": Outputs(scores="nowhere")}, "no output nowhere"),
    ):
        with pytest.raises(UsageError) as asked:
            exported(Typical(), tmp_path / "m.onnx", **options)
        assert said in f"{asked.value.what} {asked.value.why}"


@pytest.mark.thorough
def test_the_question_is_answered_by_its_option(tmp_path: Path) -> None:
    for named, scores in (("output_0", "lengths"), ("output_1", "output_1")):
        report = exported(Ambiguous(), tmp_path / "m.onnx", outputs=Outputs(scores=named))
        assert report.scores.output == scores
        assert "named by the user" in report.scores.reason


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [1, 3])
def test_a_fixed_batch(tmp_path: Path, batch: int) -> None:
    report = exported(Typical(), tmp_path / "m.onnx", batch=batch)
    assert report.outputs["lengths"] == [batch, 4]


@pytest.mark.thorough
def test_a_mask_is_told(tmp_path: Path) -> None:
    report = exported(OnlyMask(), tmp_path / "m.onnx")
    assert any("above 0.999 for each of 16 images of noise" in w for w in report.warnings)
    report = exported(Typical(), tmp_path / "m.onnx", outputs=Outputs(scores="output_2"))
    assert any("output_2 is a mask" in warning for warning in report.warnings)


def run(*words: object) -> tuple[int, str, Any]:
    from capsedge.cli import app

    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, CapsedgeError):
        return int(result.exception.exit_code), result.stdout, result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.thorough
def test_quantize_checks_shape_and_chance(tmp_path: Path) -> None:
    file, data = tmp_path / "m.onnx", tmp_path / "data.npz"
    module = Typical()
    exported(module, file)
    session = load(file)
    best = np.array([p.labels[0].index for p in session.predict(IMAGES)])
    many = np.random.default_rng(4).integers(0, 256, (90, 8, 8)).astype(np.uint8)
    best = np.array([p.labels[0].index for p in session.predict(many)])
    np.savez(data, images=many, labels=best)
    options = ("--calib-data", data, "--calib-images", 30, "--max-drop", 100)
    code, out, error = run("quantize", file, *options, "--json")
    assert code == 0, error
    assert "which export adds" in json.loads(out)["criterion"]
    code, _, error = run("quantize", file, *options, "--scores", "output_0")
    assert code == 2
    assert "'output_0' has [4, 6] for an image" in error.why
    assert "--scores lengths" in error.command
    np.savez(data, images=many, labels=(best + 1) % 4)
    for more in ((), ("--sensitivity",)):
        code, _, error = run("quantize", file, *options, *more)
        assert code == 2
        assert "no better than chance" in error.what
    # The same file without metadata: the values tell the mask, and what the file would have to compute.
    bare = tmp_path / "bare.onnx"
    capsedge.export(module, bare, example=EXAMPLE)
    np.savez(data, x=(many / 255).astype(np.float32)[:, None], labels=best)
    code, _, error = run("quantize", bare, *options)
    assert code == 2
    assert "lengths of its capsules output_0" in error.why
    assert "output_2 is a mask" in error.why


@pytest.mark.thorough
def test_export_says_that_its_model_is_the_default(tmp_path: Path) -> None:
    words = ("export", "-o", tmp_path / "x.onnx", "--dry-run")
    code, out, err = run(*words)
    assert code == 0
    assert err.splitlines()[0].startswith("exporting digits-dynamic")
    assert "default" in err.splitlines()[0]
    assert "the default" in out.splitlines()[0]
    found = json.loads(run(*words, "--json")[1])
    assert found["default_model"] is True
    named = json.loads(run(*words, "--json", "--checkpoint", "digits-dynamic")[1])
    assert named["default_model"] is False
