"""What `--data` and `--reference-code` report of an imported network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import UnsupportedModelError
from capsedge.importers import reference_check
from capsedge.importers.reference_check import ReferenceInputs
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.importers.families import fsanet, networks
from tests.importers.test_families import saved


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_check, "RANDOM", 8)
    monkeypatch.setattr(reference_check, "STROKES", 8)


def faces(path: Path, module: nn.Module, blue_first: bool, turned: bool = False) -> Path:
    """Pixels whose angles are what a network of the family says of them."""
    pixels = np.random.default_rng(3).integers(0, 256, (24, 64, 64, 3)).astype(np.uint8)
    pixels[:, :, :, 0] //= 4  # little red, so that the order of the colours counts
    shown = pixels[..., ::-1] if blue_first else pixels
    prepared = (shown.astype(np.float32).transpose(0, 3, 1, 2) - 127.5) / 128
    with torch.no_grad():
        angles = module(torch.from_numpy(np.ascontiguousarray(prepared))).numpy()
    np.savez(path, images=pixels, targets=-angles if turned else angles)
    return path


@pytest.mark.thorough
def test_errors_in_degrees_and_what_would_be_better(tmp_path: Path) -> None:
    torch.manual_seed(21)
    module = fsanet.FsaNet("convolution", 99.0).eval()
    weights = saved(module, tmp_path / "m.pth")
    data = faces(tmp_path / "faces.npz", module, blue_first=True)
    right = capsedge.import_checkpoint(weights, variant="omasaht", data=data).measured
    assert right is not None
    assert right.accuracy is None
    assert set(right.errors) == {"yaw", "pitch", "roll"}
    assert max(right.errors.values()) < 1e-2
    assert not right.warnings
    report = capsedge.import_checkpoint(weights, variant="vietlinhtspt", data=data)
    wrong = report.measured
    assert wrong is not None
    assert "--variant omasaht" in wrong.better
    assert wrong.better["--variant omasaht"] == pytest.approx(
        np.mean([*right.errors.values()]), abs=1e-6
    )
    said = [w for w in report.warnings if "--variant omasaht is clearly better" in w]
    assert len(said) == 1
    assert "degrees" in said[0]


@pytest.mark.thorough
def test_data_decide_between_variants_of_a_regression(tmp_path: Path) -> None:
    """Each variant prepares the images in its own way."""
    torch.manual_seed(22)
    module = fsanet.FsaNet("convolution", 99.0).eval()
    weights = saved(module, tmp_path / "m.pth")
    data = faces(tmp_path / "faces.npz", module, blue_first=True)
    report = capsedge.import_checkpoint(weights, data=data)
    assert report.model.config.preprocessing.order == "BGR"
    assert any("variant 'omasaht' by the data" in note for note in report.origin.notes)


@pytest.mark.thorough
def test_a_wrong_sign_is_noticed(tmp_path: Path) -> None:
    torch.manual_seed(23)
    module = fsanet.FsaNet("convolution", 99.0).eval()
    data = faces(tmp_path / "faces.npz", module, blue_first=True, turned=True)
    report = capsedge.import_checkpoint(
        saved(module, tmp_path / "m.pth"),
        variant="omasaht",
        data=data,
    )
    assert report.measured is not None
    assert report.measured.useless == ("yaw", "pitch", "roll")
    assert sum("no lower than that of a constant" in w for w in report.warnings) == 3


@pytest.mark.thorough
def test_a_network_that_averages_over_the_batch_is_measured_at_its_batch(tmp_path: Path) -> None:
    torch.manual_seed(24)
    module = networks.CedricChee().eval()
    x = torch.rand((60, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        report = capsedge.import_checkpoint(saved(module, tmp_path / "m.pt"), iterations=3)
        labels = torch.cat([report.model(one[None]).scores.argmax(1) for one in x]).numpy()
    np.savez(tmp_path / "d.npz", images=x.numpy(), labels=labels)
    found = capsedge.import_checkpoint(
        tmp_path / "m.pt", iterations=3, data=tmp_path / "d.npz"
    ).measured
    assert found is not None
    assert found.accuracy == 1.0


@pytest.mark.thorough
def test_a_thousand_inputs_in_small_blocks() -> None:
    made = ReferenceInputs(Preprocessing(8, 8, 1))
    blocks = list(made)
    assert len(made) == sum(len(b.names) for b in blocks) >= 1000
    assert max(len(b.inputs) for b in blocks) <= reference_check.BATCH
    names = [name for block in blocks for name in block.names]
    assert len(set(names)) == len(names)
    values = np.concatenate([b.inputs for b in blocks])
    assert len(np.unique(values, axis=0)) > len(values) - 10  # black and the zero input are equal
    again = np.concatenate([b.inputs for b in made])
    assert np.array_equal(values, again)


class Dividing(networks.XifengGuo):
    """An author's code that asks for a GPU, and divides zero by zero on a black image."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        largest = x.flatten(1).amax(1)[:, None]
        lengths, picture = super().forward(x)
        one = torch.cuda.FloatTensor(1).fill_(1.0)
        return lengths.cuda() * (largest / largest) * one, picture


class Drawing(networks.XifengGuo):
    """An author's code that draws in evaluation, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lengths, picture = super().forward(x)
        return lengths + 0.1 * torch.rand_like(lengths), picture


def test_code_that_draws_is_refused_with_its_line(few: None, tmp_path: Path) -> None:
    (tmp_path / "author.py").write_text(
        "from tests.importers.test_measured import Drawing\ndef build(): return Drawing(3)\n"
    )
    with pytest.raises(UnsupportedModelError, match="draws random numbers") as caught:
        capsedge.import_checkpoint(
            saved(networks.XifengGuo(3), tmp_path / "m.pt"),
            tmp_path / "c.safetensors",
            iterations=3,
            reference_code=f"{tmp_path / 'author.py'}:build",
        )
    assert "rand_like" in str(caught.value)
    assert not (tmp_path / "c.safetensors").exists()


def test_nan_of_the_authors_code_is_counted_and_named(few: None, tmp_path: Path) -> None:
    torch.manual_seed(25)
    (tmp_path / "author.py").write_text(
        "from tests.importers.test_measured import Dividing\ndef build(): return Dividing(3)\n"
    )
    seen: list[tuple[int, int | None]] = []
    report = capsedge.import_checkpoint(
        saved(networks.XifengGuo(3), tmp_path / "m.pt"),
        iterations=3,
        reference_code=f"{tmp_path / 'author.py'}:build",
        progress=lambda _, done=0, total=None: seen.append((done, total)),
    )
    found = report.comparison
    assert found is not None
    assert found.passed
    assert found.nan == found.nan_in_code_only == 2
    assert found.nan_on == "black, zero input"
    assert any("NaN on 2 of 33 inputs, such as black" in w for w in report.warnings)
    assert found.least_margin is not None
    assert 0 <= found.least_margin < 1
    assert seen == [(8, 33), (16, 33), (33, 33)]


def test_a_margin_below_the_tolerance_is_no_flip() -> None:
    """Rounding may turn it; what it turns is counted apart."""
    theirs = np.array([[0.5, 0.5 + 2e-6], [0.5, 0.5 + 2e-6], [0.1, 1.0], [1.0, 0.1]])
    ours = np.array([[0.5, 0.5 + 2e-6], [0.5 + 2e-6, 0.5], [0.1, 1.0], [0.1, 1.0]])
    answers = reference_check._BothOutputs("scores", ours, theirs, ("a", "b", "c", "d"))
    found = reference_check._decisions(answers, np.ones(4, bool), values=False)
    assert found == {
        "flips": 1,
        "least_margin": pytest.approx(2e-6),
        "narrow": 2,
        "narrow_flips": 1,
    }
    assert (
        reference_check._decisions(answers, np.ones(4, bool), values=True)["least_margin"] is None
    )


class Unsaved(networks.XifengGuo):
    """An author's code with values that its state dict lacks."""

    def __init__(self) -> None:
        super().__init__(3)
        self.offsets = torch.rand(5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lengths, picture = super().forward(x)
        return lengths + self.offsets, picture


def test_code_whose_weights_lack_a_tensor_is_refused(few: None, tmp_path: Path) -> None:
    (tmp_path / "author.py").write_text(
        "from tests.importers.test_measured import Unsaved\ndef build(): return Unsaved()\n"
    )
    with pytest.raises(UnsupportedModelError, match=r"that m\.pt does not hold") as caught:
        capsedge.import_checkpoint(
            saved(networks.XifengGuo(3), tmp_path / "m.pt"),
            iterations=3,
            reference_code=f"{tmp_path / 'author.py'}:build",
        )
    assert caught.value.details[0].startswith("offsets [5]")
