"""FSA-Net: values of its authors' code, through import, export and the runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import capsedge
from capsedge.errors import ArtefactError, ParityError, UnsupportedModelError, UsageError
from capsedge.models import build
from capsedge.models.configs import FSANetConfig
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.importers.families import fsanet, networks
from tests.importers.test_families import saved

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


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CASES)
def test_the_function_of_its_author(case: str, tmp_path: Path) -> None:
    scoring, yaw, variant = CASES[case]
    module = network(scoring, yaw)
    file = saved(module, tmp_path / "m.pth", epoch=3)
    report = capsedge.import_checkpoint(file, tmp_path / "c.safetensors", variant=variant)
    assert report.origin.family == "fsanet"
    outputs = report.model.config.outputs
    assert outputs is not None
    assert (outputs.names, outputs.units) == (("yaw", "pitch", "roll"), ("degrees",) * 3)
    assert report.model.config.preprocessing.order == ("BGR" if variant == "omasaht" else "RGB")
    assert variant.split("-")[0] in report.origin.source
    assert report.origin.licence == (
        "MIT" if variant == "omasaht" else ""
    )  # vietlinhtspt states none
    with torch.no_grad():
        wanted = module(images())
        found = capsedge.load_checkpoint(tmp_path / "c.safetensors")(images()).scores
    assert wanted.abs().max() > 1
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.thorough
def test_the_variant_is_asked_for(tmp_path: Path) -> None:
    file = saved(network("variance", 99.0), tmp_path / "m.pth")
    with pytest.raises(UsageError, match="Which variant of fsanet"):
        capsedge.import_checkpoint(file)
    with pytest.raises(UsageError, match="no task"):
        capsedge.import_checkpoint(
            file,
            description=capsedge.Description(task="single-label"),
            variant="omasaht",
        )
    with pytest.raises(UsageError, match="64x64"):
        capsedge.import_checkpoint(
            file,
            description=capsedge.Description(preprocessing={"height": 128, "width": 128}),
            variant="omasaht",
        )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "variant", ["omasaht", pytest.param("vietlinhtspt", marks=pytest.mark.thorough)]
)
def test_another_range_is_noticed(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsedge.importers.reference_check.RANDOM", 4)
    monkeypatch.setattr("capsedge.importers.reference_check.STROKES", 4)
    module = network("convolution", 99.0)
    monkeypatch.setattr(networks, "AUTHOR", module, raising=False)
    (tmp_path / "author.py").write_text(
        "from tests.importers.families import networks\ndef build(): return networks.AUTHOR\n"
    )
    against = f"{tmp_path / 'author.py'}:build"
    file = saved(module, tmp_path / "m.pth")
    if variant == "omasaht":
        report = capsedge.import_checkpoint(file, variant=variant, reference_code=against)
        assert report.comparison is not None
        assert report.comparison.flips == 0
    else:
        with pytest.raises(ParityError):
            capsedge.import_checkpoint(file, variant=variant, reference_code=against)


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    module = network("variance", 99.0)
    module.fgsm.fc.bias.data[0] = torch.nan  # type: ignore[union-attr, operator]
    with pytest.raises(ArtefactError, match="diverged"):
        capsedge.import_checkpoint(saved(module, tmp_path / "m.pth"), variant="omasaht")


@pytest.mark.slow
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


@pytest.mark.thorough
@pytest.mark.parametrize("together", [True, False])
def test_an_ensemble_of_its_authors_networks(together: bool, tmp_path: Path) -> None:
    """Of several files, or of one that holds a module with several networks."""
    torch.manual_seed(11)
    members = [fsanet.FsaNet(scoring).eval() for scoring in ("variance", "convolution", "variance")]
    files = [saved(m, tmp_path / f"{k}.pth") for k, m in enumerate(members)]
    if together:
        whole = nn.ModuleDict({f"net{k}": m for k, m in enumerate(members)})
        files = [saved(whole, tmp_path / "all.pth")]
    report = capsedge.import_checkpoint(files, tmp_path / "c.safetensors", variant="omasaht")
    assert report.origin.family == "fsanet-ensemble"
    assert report.origin.file == ", ".join(f.name for f in files)
    assert len(report.origin.file_sha256.split(", ")) == len(files)
    with torch.no_grad():
        wanted = torch.stack([m(images()) for m in members]).mean(0)
        found = capsedge.load_checkpoint(tmp_path / "c.safetensors")(images()).scores
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert (members[0](images()) - wanted).abs().max() > 0.01 * wanted.abs().max()


@pytest.mark.thorough
def test_networks_that_make_no_ensemble(tmp_path: Path) -> None:
    torch.manual_seed(11)
    one, other = fsanet.FsaNet(), fsanet.FsaNet()
    other.esp_s1.shift_fc = nn.Linear(4, 2)
    files = [saved(m, tmp_path / f"{k}.pth") for k, m in enumerate((one, other))]
    with pytest.raises(UnsupportedModelError):
        capsedge.import_checkpoint(files, variant="omasaht")
    narrow = fsanet.FsaNet()
    narrow.caps_layer.affine_w = nn.Parameter(0.3 * torch.randn(3, 12, 16, 64))
    narrow.fgsm.fc = nn.Linear(192, 20)
    files[1] = saved(narrow, tmp_path / "narrow.pth")
    with pytest.raises(UsageError, match="differ in primary_types: 7 and 4"):
        capsedge.import_checkpoint(files, variant="omasaht")
    with pytest.raises(UsageError, match="No file"):
        capsedge.import_checkpoint([])


@pytest.mark.thorough
def test_an_ensemble_beside_its_authors_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code holds its weights: no one file is that of all networks."""
    monkeypatch.setattr("capsedge.importers.reference_check.RANDOM", 4)
    monkeypatch.setattr("capsedge.importers.reference_check.STROKES", 4)
    torch.manual_seed(11)
    members = [fsanet.FsaNet(scoring).eval() for scoring in ("variance", "convolution")]
    files = [saved(m, tmp_path / f"{k}.pth") for k, m in enumerate(members)]
    (tmp_path / "author.py").write_text(
        "import torch\nfrom torch import nn\nfrom tests.importers.families import fsanet\n"
        "class Both(nn.Module):\n"
        "    def __init__(self, files):\n"
        "        super().__init__()\n"
        "        self.nets = nn.ModuleList(fsanet.FsaNet(s) for s in ('variance', 'convolution'))\n"
        "        for net, file in zip(self.nets, files):\n"
        "            net.load_state_dict(torch.load(file, weights_only=True))\n"
        "    def forward(self, x): return sum(n(x) for n in self.nets) / 2\n"
        f"def both(): return Both({[str(f) for f in files]})\n"
        f"def twice(): return Both({[str(files[0])]})\n"
    )
    report = capsedge.import_checkpoint(
        files,
        variant="omasaht",
        reference_code=f"{tmp_path / 'author.py'}:both",
    )
    assert report.comparison is not None
    assert report.comparison.passed
    with pytest.raises(ParityError):
        capsedge.import_checkpoint(
            files,
            variant="omasaht",
            reference_code=f"{tmp_path / 'author.py'}:twice",
        )


@pytest.mark.thorough
def test_the_keras_ensemble(tmp_path: Path) -> None:
    """One network of each kind, as the author's demo takes them."""
    pytest.importorskip("h5py")
    torch.manual_seed(13)
    x = torch.rand((3, 3, 64, 64), generator=torch.Generator().manual_seed(5)) * 2
    files, wanted = [], torch.zeros(3, 3)
    for scoring in ("convolution", "variance", "none"):
        weights = fsanet.keras_weights(scoring)
        files.append(keras_file(weights, tmp_path / f"{scoring}.h5"))
        with torch.no_grad():
            wanted += fsanet.keras_fsanet(x.permute(0, 2, 3, 1), weights, scoring) / 3
    report = capsedge.import_checkpoint(files)
    assert report.origin.family == "fsanet-keras-ensemble"
    with torch.no_grad():
        found = report.model(x).scores
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def keras_file(weights: dict[str, torch.Tensor], path: Path) -> Path:
    from tests.importers.families.keras_networks import write

    layers: dict[str, dict[str, np.ndarray]] = {}
    for key, value in weights.items():
        layer, name = key.split("/", 1)
        layers.setdefault(layer, {})[name] = value.numpy()
    return write(path, layers)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pooling", ["metric", "netvlad"])
@pytest.mark.parametrize("scoring", ["convolution", "variance", "none"])
def test_networks_of_the_authors_comparison(scoring: str, pooling: str, tmp_path: Path) -> None:
    """Without capsules; the file of what is exported does not claim any routing."""
    pytest.importorskip("h5py")
    torch.manual_seed(13)
    weights = fsanet.keras_weights(scoring, pooling)
    report = capsedge.import_checkpoint(
        keras_file(weights, tmp_path / "m.h5"), tmp_path / "c.safetensors"
    )
    assert report.origin.family == f"fsanet-keras-{pooling}"
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    assert model.config.routing == ""
    x = torch.rand((4, 3, 64, 64), generator=torch.Generator().manual_seed(5)) * 2
    with torch.no_grad():
        wanted = fsanet.keras_fsanet(x.permute(0, 2, 3, 1), weights, scoring)
        found = model(x).scores
    assert wanted.abs().max() > 1
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.sample(1)
@pytest.mark.parametrize("scoring", ["convolution", "variance", "none"])
def test_the_keras_original(scoring: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    torch.manual_seed(13)
    weights = fsanet.keras_weights(scoring)
    report = capsedge.import_checkpoint(keras_file(weights, tmp_path / "m.h5"))
    assert report.origin.family == "fsanet-keras" + ("-no-mapping" if scoring == "none" else "")
    x = torch.rand((4, 3, 64, 64), generator=torch.Generator().manual_seed(5)) * 2
    with torch.no_grad():
        wanted = fsanet.keras_fsanet(x.permute(0, 2, 3, 1), weights, scoring)
        found = report.model(x).scores
    assert wanted.abs().max() > 1
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
