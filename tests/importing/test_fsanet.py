"""FSA-Net: values of its authors' code, through import, export and the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import capsedge
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.models import build
from capsedge.models.config import FSANetConfig
from capsedge.runtime.metadata import Preprocessing
from tests.families import fsanet, networks
from tests.importing.test_families import saved

CASES = {
    "convolution": ("convolution", 99.0, "omasaht"),
    "variance": ("variance", 99.0, "vietlinhtspt-2020"),
    "yaw to 180": ("variance", 180.0, "vietlinhtspt"),
}


def images(count: int = 5) -> torch.Tensor:
    return torch.randn((count, 3, 64, 64), generator=torch.Generator().manual_seed(4))


def network(scoring: str, yaw: float) -> nn.Module:
    torch.manual_seed(11)
    return fsanet.FsaNet(scoring, yaw).eval()


@pytest.mark.parametrize("case", CASES)
def test_the_function_of_its_author(case: str, tmp_path: Path) -> None:
    scoring, yaw, variant = CASES[case]
    module = network(scoring, yaw)
    file = saved(module, tmp_path / "m.pth", epoch=3)
    report = capsedge.import_checkpoint(file, tmp_path / "c.safetensors", variant=variant)
    assert report.origin.family == "fsanet"
    assert variant.split("-")[0] in report.origin.source
    assert report.origin.licence == (
        "MIT" if variant == "omasaht" else ""
    )  # vietlinhtspt states none
    with torch.no_grad():
        wanted = module(images())
        found = capsedge.load_checkpoint(tmp_path / "c.safetensors")(images()).scores
    assert wanted.abs().max() > 1
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_the_variant_is_asked_for(tmp_path: Path) -> None:
    file = saved(network("variance", 99.0), tmp_path / "m.pth")
    with pytest.raises(UsageError, match="Which variant of fsanet"):
        capsedge.import_checkpoint(file)
    with pytest.raises(UsageError, match="values"):
        capsedge.import_checkpoint(file, variant="omasaht", task="single-label")
    with pytest.raises(UsageError, match="64x64"):
        capsedge.import_checkpoint(
            file, variant="omasaht", preprocessing={"height": 128, "width": 128}
        )


@pytest.mark.parametrize("variant", ["omasaht", "vietlinhtspt"])
def test_another_range_is_noticed(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsedge.importing.inputs.RANDOM", 4)
    monkeypatch.setattr("capsedge.importing.inputs.STROKES", 4)
    module = network("convolution", 99.0)
    monkeypatch.setattr(networks, "AUTHOR", module, raising=False)
    (tmp_path / "author.py").write_text(
        "from tests.families import networks\ndef build(): return networks.AUTHOR\n"
    )
    against = f"{tmp_path / 'author.py'}:build"
    file = saved(module, tmp_path / "m.pth")
    if variant == "omasaht":
        report = capsedge.import_checkpoint(file, variant=variant, against=against)
        assert report.comparison is not None
        assert report.comparison.flips == 0
    else:
        with pytest.raises(ParityError):
            capsedge.import_checkpoint(file, variant=variant, against=against)


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    module = network("variance", 99.0)
    module.fgsm.fc.bias.data[0] = torch.nan  # type: ignore[union-attr, operator]
    with pytest.raises(ArtefactError, match="diverged"):
        capsedge.import_checkpoint(saved(module, tmp_path / "m.pth"), variant="omasaht")


def test_export_and_infer_in_degrees(tmp_path: Path) -> None:
    """An image's colours reach the network in its author's order."""
    module = network("variance", 99.0)
    report = capsedge.import_checkpoint(saved(module, tmp_path / "m.pth"), variant="omasaht")
    capsedge.export(report.model, tmp_path / "m.onnx")
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    values = capsedge.load(tmp_path / "m.onnx").predict(pixels)[0].values
    assert [(v.name, v.unit) for v in values] == [(n, "degrees") for n in ("yaw", "pitch", "roll")]
    blue_first = (pixels[:, :, ::-1].astype(np.float32).transpose(2, 0, 1) - 127.5) / 128
    with torch.no_grad():
        wanted = module(torch.from_numpy(np.ascontiguousarray(blue_first))[None])[0].numpy()
    assert np.allclose([v.value for v in values], wanted, rtol=1e-4, atol=1e-3)


def test_parts_are_averaged(tmp_path: Path) -> None:
    torch.manual_seed(12)
    config = FSANetConfig(preprocessing=Preprocessing(64, 64, 3), scorings=("variance", "none"))
    both = build(config).eval()
    alone = [build(config, scorings=(scoring,)).eval() for scoring in config.scorings]
    for k, one in enumerate(alone):
        one.load_state_dict(
            {f"parts.0.{n}": v for n, v in both.parts[k].state_dict().items()}  # type: ignore[index, union-attr]
        )
    with torch.no_grad():
        mean = (alone[0](images()).scores + alone[1](images()).scores) / 2
        assert torch.allclose(both(images()).scores, mean, atol=1e-4)


@pytest.mark.parametrize("scoring", ["convolution", "variance", "none"])
def test_the_keras_original(scoring: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from tests.families.keras_networks import write

    torch.manual_seed(13)
    weights = fsanet.keras_weights(scoring)
    layers: dict[str, dict[str, np.ndarray]] = {}
    for key, value in weights.items():
        layer, name = key.split("/", 1)
        layers.setdefault(layer, {})[name] = value.numpy()
    report = capsedge.import_checkpoint(write(tmp_path / "m.h5", layers))
    assert report.origin.family == "fsanet-keras" + ("-no-mapping" if scoring == "none" else "")
    x = torch.rand((4, 3, 64, 64), generator=torch.Generator().manual_seed(5)) * 2
    with torch.no_grad():
        wanted = fsanet.keras_fsanet(x.permute(0, 2, 3, 1), weights, scoring)
        found = report.model(x).scores
    assert wanted.abs().max() > 1
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
