"""FixCaps: every stem computes what its author's code computes, with the windows of its pooling fixed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge import models
from capsedge.errors import ParityError, UnsupportedModelError, UsageError
from capsedge.importers.reference_check import InputBlock, _same_in_fp64
from capsedge.models.configs import CapsNetConfig, Conv
from capsedge.models.stems import FractionalMaxPool
from tests.importers.families import fixcaps as n
from tests.importers.importing import import_with
from tests.tables import table

PIXELS = {"mean": (0.5,), "std": (0.5,), "scale": 1 / 255}
CASES: dict[str, tuple[Callable[[], n.FixCaps], int]] = {
    "large convolution": (n.large, 51),
    "separable, channels normalized": (lambda: n.separable(n.OverChannels(n.C)), 96),
    "separable, batch normalized": (lambda: n.separable(nn.BatchNorm2d(n.C)), 96),
    "three convolutions": (lambda: n.separable(nn.BatchNorm2d(n.C), first=True), 192),
    "May 2022": (lambda: n.separable(nn.BatchNorm2d(n.C), True, 1), 56),
    "May 2022, no normalization": (lambda: n.separable(None, True, 1), 56),
}


def answers(side: int) -> dict[str, Any]:
    return {"preprocessing": {"height": side, "width": side, **PIXELS}}


def saved(module: nn.Module, path: Path) -> Path:
    """As the author saves it, with the counters that a tool left."""
    torch.save({**module.state_dict(), "primary.total_ops": torch.zeros(1)}, path)
    return path


def one_by_one(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([module(image.unsqueeze(0)) for image in x]).squeeze(-1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CASES)
def test_the_function_of_its_author(case: str, tmp_path: Path) -> None:
    make, side = CASES[case]
    torch.manual_seed(5)
    module = make().eval()
    report = import_with(
        saved(module, tmp_path / "m.pt"), tmp_path / "c.safetensors", **answers(side)
    )
    assert report.origin.family == "fixcaps"
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    x = torch.rand(4, 3, side, side)
    wanted = one_by_one(module, x)
    with torch.no_grad():
        found = model(x).poses
    assert torch.isfinite(wanted).all()
    assert wanted.std(0).max() > 1e-3  # an image says something
    assert (found - wanted).abs().max() <= 3e-5 * wanted.abs().max()


@table(
    "size, kind", itertools.product([*range(21, 80), 133, 139, 299], [torch.float32, torch.float64])
)
def test_the_windows_are_those_of_pytorch(size: int, kind: torch.dtype) -> None:
    x = torch.rand(1, 2, size, size + 1, dtype=kind)
    samples = torch.full((1, 2, 2), 5 / 16, dtype=kind)
    wanted = nn.functional.fractional_max_pool2d(
        x, 2, output_size=(20, 20), _random_samples=samples
    )
    assert torch.equal(FractionalMaxPool((size, size + 1), 20)(x), wanted)


def test_images_that_are_too_small_for_the_pooling() -> None:
    with pytest.raises(UsageError, match=r"(?s)cannot make 20 rows of 20.*needs 21"):
        FractionalMaxPool((20, 30), 20)


def compared(module: nn.Module, tmp_path: Path, patch: pytest.MonkeyPatch) -> Any:
    """The import of a network beside its own code."""
    patch.setattr("capsedge.importers.reference_check.RANDOM", 6)
    patch.setattr("capsedge.importers.reference_check.STROKES", 2)
    patch.setattr(n, "AUTHOR", module.eval(), raising=False)
    (tmp_path / "author.py").write_text(
        "from tests.importers.families import fixcaps\ndef build(): return fixcaps.AUTHOR\n"
    )
    return import_with(
        saved(module, tmp_path / "m.pt"),
        reference_code=f"{tmp_path / 'author.py'}:build",
        **answers(60),
    )


@pytest.mark.thorough
def test_the_authors_random_windows_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PyTorch's own layer, as the author writes it; the certificate says so."""
    torch.manual_seed(5)
    module = n.large(pool=nn.FractionalMaxPool2d(2, (20, 20)))
    x = torch.rand(2, 3, 60, 60)
    assert not torch.equal(one_by_one(module, x), one_by_one(module, x))
    report = compared(module, tmp_path, monkeypatch)
    assert report.comparison.passed
    assert "5/16" in report.comparison.fixed
    assert "5/16" in report.origin.comparison


def test_constants_of_the_authors_code_do_not_limit_fp64(tmp_path: Path) -> None:
    """Its start logits are FP32 unless told otherwise, and 1/72 in FP32 is another number than in FP64."""
    torch.manual_seed(5)
    module = n.large().eval()
    model = import_with(saved(module, tmp_path / "m.pt"), **answers(51)).model
    block = InputBlock(("noise",) * 2, torch.rand(2, 3, 51, 51).numpy())
    assert _same_in_fp64(model, module, iter([block]), 1, 1.0)
    assert torch.get_default_dtype() == torch.float32


CONFUSED = {
    "squash of each pose": lambda: n.large(squashed=2),
    "other windows": lambda: n.large(pool=n.Pool(0.9)),
    "normalization of the batch for the channels": lambda: n.large(norm=n.OverChannels(n.C)),
}


def test_windows_drawn_out_of_sight_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(6)
    with pytest.raises(UnsupportedModelError, match="draws random numbers"):
        compared(n.large(pool=n.Pool(None)), tmp_path, monkeypatch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CONFUSED)
def test_the_authors_code_notices_the_wrong_function(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(6)
    module = CONFUSED[case]()
    if "batch" in case:  # equal keys and shapes; each image normalized by itself
        monkeypatch.setattr(n.OverChannels, "forward", by_image)
    with pytest.raises(ParityError, match="different results"):
        compared(module, tmp_path, monkeypatch)


def by_image(norm: n.OverChannels, x: Tensor) -> Tensor:
    return nn.functional.group_norm(x, 1, norm.weight, norm.bias, 1e-6)


def test_the_1x1_stride_is_told_by_the_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that none of the author's codes makes: all biases, and a 1x1 convolution of stride 2."""
    torch.manual_seed(6)
    file = saved(n.separable(nn.BatchNorm2d(n.C), True, 2), tmp_path / "m.pt")
    report = import_with(file, **answers(96))
    assert "1x1 convolutions with stride 1, inferred from the biases" in report.origin.notes
    module = n.separable(nn.BatchNorm2d(n.C), True, 2).eval()
    x = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        found = report.model(x).poses
    assert (found - one_by_one(module, x)).abs().max() > 1e-3


@pytest.mark.slow
def test_the_export_has_a_batch_of_one(tmp_path: Path) -> None:
    torch.manual_seed(5)
    saved(n.large(), tmp_path / "m.pt")
    import_with(tmp_path / "m.pt", tmp_path / "c.safetensors", **answers(60))
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors").eval()
    assert model.config.fixed_batch == 1
    capsedge.export(model, tmp_path / "m.onnx")
    x = torch.rand(1, 3, 60, 60)
    with torch.no_grad():
        wanted = model(x).scores.numpy()
    found = capsedge.load(tmp_path / "m.onnx").run(x.numpy())
    assert np.abs(found["lengths"] - wanted).max() <= 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "gelu"},
        {"attention_kernel": 2},
        {"groups": 0},
        {"pooled": -1},
        {"squeeze": 10**6},
    ],
)
def test_impossible_convolutions(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Conv(8, 3, **change)


def test_groups_that_do_not_divide_the_channels() -> None:
    config = CapsNetConfig(
        class_names=("a", "b"),
        preprocessing=capsedge.Preprocessing(28, 28, 1),
        stem=(Conv(9, 3),),
        primary_types=2,
        primary_groups=2,
    )
    with pytest.raises(UsageError, match="cannot have 2 groups"):
        models.build(config)
