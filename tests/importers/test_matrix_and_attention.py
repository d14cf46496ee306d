"""Families of EM, attention and self-attention routing compute what their authors' code computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import UsageError
from tests.importers.families import keras_efficient
from tests.importers.families import matrix_and_attention as n
from tests.importers.importing import import_with

YL = {"iterations": 2, "variant": "new"}
APPLE = {"iterations": 2, "family": "apple"}
YAO = {"iterations": 2, "family": "yaohungt"}
SEQUENTIAL = {"variant": "sequential"}
Case = tuple[str, Callable[[], nn.Module], dict[str, Any], tuple[int, int, int]]
GREY, SMALL, COLOUR = (1, 28, 28), (1, 32, 32), (3, 32, 32)
CASES: dict[str, Case] = {
    "yl-1993": ("yl-1993", n.Yl1993, YL, GREY),
    "yl-1993, 1 iteration": ("yl-1993", lambda: n.Yl1993(1), {**YL, "iterations": 1}, GREY),
    "yl-1993, 3 iterations": ("yl-1993", lambda: n.Yl1993(3), {**YL, "iterations": 3}, GREY),
    "yl-1993, old": ("yl-1993", lambda: n.Yl1993(old=True), {**YL, "variant": "old"}, GREY),
    "yl-1993, no norm": ("yl-1993", lambda: n.Yl1993(norm=False), YL, GREY),
    "yl-1993, 32x32": (
        "yl-1993",
        n.Yl1993,
        {**YL, "preprocessing": {"height": 32, "width": 32, "scale": 1 / 255}},
        SMALL,
    ),
    "apple": ("apple", lambda: n.Attention(mixed=True, resnet=True), APPLE, COLOUR),
    "apple, sequential": (
        "apple",
        lambda: n.Attention(3, mixed=True, sequential=True),
        {**APPLE, **SEQUENTIAL, "iterations": 3},
        COLOUR,
    ),
    "apple, one pass": (
        "apple",
        lambda: n.Attention(1, mixed=True),
        {**APPLE, "iterations": 1},
        COLOUR,
    ),
    "apple, vectors": ("apple", lambda: n.Attention(mixed=True, matrix=False), APPLE, COLOUR),
    "yaohungt": ("yaohungt", lambda: n.Attention(mixed=False, dense=4), YAO, COLOUR),
    "yaohungt, sequential": (
        "yaohungt",
        lambda: n.Attention(mixed=False, sequential=True, resnet=True, dense=4),
        {**YAO, **SEQUENTIAL},
        COLOUR,
    ),
    "yaohungt, vectors": (
        "yaohungt",
        lambda: n.Attention(mixed=False, matrix=False, dense=4),
        YAO,
        COLOUR,
    ),
    "akhdanfadh": ("akhdanfadh", n.Efficient, {}, GREY),
    "akhdanfadh with its decoder": ("akhdanfadh", n.WholeEfficient, {}, GREY),
}
KERAS = {"escvm", "escvm-smallnorb"}
FAMILIES = {family for family, *_ in CASES.values()} | KERAS


def saved(module: nn.Module, path: Path) -> Path:
    """A file of torch.save, wrapped as by DataParallel."""
    torch.save({"net": {f"module.{k}": v for k, v in module.state_dict().items()}}, path)
    return path


def images(shape: tuple[int, int, int], count: int = 5) -> Tensor:
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(3))


def pixels(shape: tuple[int, ...]) -> Tensor:
    """Patterns of several scales, 0 to 255."""
    rng = torch.Generator().manual_seed(3)
    n, h, w, *c = shape
    channels = c[0] if c else 1
    coarse = nn.functional.interpolate(torch.rand((n, channels, 4, 4), generator=rng), (h, w))
    values = 200 * coarse + 55 * torch.rand((n, channels, h, w), generator=rng)
    return values.floor().movedim(1, -1).reshape(shape)


def scores(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = module(x)
    found: Tensor = out[1] if isinstance(out, tuple) else out
    return found


def difference(model: nn.Module, wanted: Tensor, x: Tensor) -> float:
    """Of the scores, relative to the largest."""
    with torch.no_grad():
        found = model(x).scores
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES)
def test_the_function_of_its_author(case: str, tmp_path: Path) -> None:
    family, make, answers, shape = CASES[case]
    torch.manual_seed(5)
    module = make().eval()
    report = import_with(saved(module, tmp_path / "m.pt"), tmp_path / "c.safetensors", **answers)
    assert report.origin.family == family
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    wanted = scores(module, images(shape))
    assert torch.isfinite(wanted).all()
    assert wanted.std() > 1e-4 * wanted.abs().max()  # an image and a class say something
    assert difference(model, wanted, images(shape)) <= 1e-5


# Equal keys and shapes, another function.
CONFUSED = {
    "yl-1993: old for new": ("yl-1993", {"variant": "old"}),
    "yl-1993: new for old": ("yl-1993, old", {"variant": "new"}),
    "yl-1993: iterations": ("yl-1993", {"iterations": 3}),
    "apple for yaohungt": ("yaohungt", {"family": "apple"}),
    "yaohungt for apple": ("apple", {"family": "yaohungt"}),
    "concurrent for sequential": ("apple, sequential", {"variant": "concurrent"}),
    "sequential for concurrent": ("yaohungt", {"variant": "sequential"}),
    "attention: iterations": ("apple", {"iterations": 1}),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CONFUSED)
def test_the_other_function_is_another(case: str, tmp_path: Path) -> None:
    """The comparison with the author's code, whose bound is 1e-5, cannot take one for the other."""
    name, changed = CONFUSED[case]
    _, make, answers, shape = CASES[name]
    torch.manual_seed(5)
    module = make().eval()
    report = import_with(saved(module, tmp_path / "m.pt"), **{**answers, **changed})
    assert difference(report.model, scores(module, images(shape)), images(shape)) > 5e-5


def test_which_patches_is_asked(tmp_path: Path) -> None:
    file = saved(n.Yl1993(), tmp_path / "m.pt")
    with pytest.raises(UsageError, match=r"(?s)variant.*add_pathes.*--data.*--variant new\|old"):
        capsedge.import_checkpoint(file, iterations=2)
    file = saved(n.Attention(mixed=True), tmp_path / "a.pt")
    with pytest.raises(UsageError, match=r"--family apple\|yaohungt"):
        capsedge.import_checkpoint(file, iterations=2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("old", [False, True])
def test_data_tells_the_patches(old: bool, tmp_path: Path) -> None:
    """The labels are what the author's network says."""
    torch.manual_seed(4)
    module = n.Yl1993(old=old).eval()
    x = pixels((40, 28, 28))
    labels = scores(module, (x.unsqueeze(1) / 255 - 0.1307) / 0.3081).argmax(1).numpy()
    assert len(np.unique(labels)) > 1
    np.savez(tmp_path / "d.npz", images=x.numpy().astype(np.uint8), labels=labels)
    file = saved(module, tmp_path / "m.pt")
    report = capsedge.import_checkpoint(file, iterations=2, data=tmp_path / "d.npz")
    assert any(f"variant '{'old' if old else 'new'}' by the data" in w for w in report.origin.notes)
    assert report.measured is not None
    assert report.measured.accuracy == 1.0


@pytest.mark.sample(1)
@pytest.mark.parametrize("mixed", [False, True])
def test_data_tells_the_family(mixed: bool, tmp_path: Path) -> None:
    torch.manual_seed(4)
    module = n.Attention(mixed=mixed).eval()
    x = pixels((30, 32, 32, 3))
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (MEAN, STD))
    labels = scores(module, (x.permute(0, 3, 1, 2) / 255 - mean) / std).argmax(1).numpy()
    np.savez(tmp_path / "d.npz", images=x.numpy().astype(np.uint8), labels=labels)
    file = saved(module, tmp_path / "m.pt")
    report = capsedge.import_checkpoint(file, iterations=2, data=tmp_path / "d.npz")
    assert report.origin.family == ("apple" if mixed else "yaohungt")


MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def test_data_that_does_not_tell(tmp_path: Path) -> None:
    torch.manual_seed(4)
    file = saved(n.Yl1993(), tmp_path / "m.pt")
    x = pixels((20, 28, 28)).numpy().astype(np.uint8)
    np.savez(tmp_path / "d.npz", images=x, labels=np.arange(20) % 10)
    with pytest.raises(UsageError, match="variant"):
        capsedge.import_checkpoint(file, iterations=2, data=tmp_path / "d.npz")


@pytest.mark.parametrize("family", sorted(KERAS))
def test_keras(family: str, tmp_path: Path) -> None:
    """Compared with the description in NumPy: TensorFlow is not needed."""
    pytest.importorskip("h5py")
    weights = keras_efficient.weights(family)
    file = keras_efficient.write(tmp_path / "m.h5", weights)
    report = capsedge.import_checkpoint(
        file, description=capsedge.Description(preprocessing={"mean": (0.0,), "std": (1.0,)})
    )
    assert report.origin.family == family
    c, side = (2, 48) if family == "escvm-smallnorb" else (1, 28)
    x = images((c, side, side), 2)
    poses, lengths = keras_efficient.forward(weights, x.permute(0, 2, 3, 1).numpy())
    with torch.no_grad():
        found = report.model(x)
    assert np.abs(found.poses.numpy() - poses).max() <= 1e-5 * np.abs(poses).max()
    assert np.abs(found.scores.numpy() - lengths).max() <= 1e-5 * lengths.max()
