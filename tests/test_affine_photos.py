"""The recipe for photographs on a processor, and the comparison with a plain network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import affine, affine_photos
from capsedge.models import build
from tools.zoo import train_photos


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_the_plain_network_is_as_large() -> None:
    assert count(affine_photos.plain()) == pytest.approx(count(build("photos")), rel=1e-3)


def test_augmentation_shifts_mirrors_and_hides() -> None:
    torch.manual_seed(0)
    ramp = torch.arange(1.0, 33).expand(64, 3, 32, 32)
    mirrored = torch.arange(64) % 2 == 0
    found = train_photos.augmented(ramp, mirrored)
    hidden = (found == 0).sum((1, 2, 3))
    assert found.shape == ramp.shape
    assert hidden.min() > 0
    for image, flipped in zip(found, mirrored, strict=True):
        steps = image.diff(dim=2)[(image[..., 1:] > 0) & (image[..., :-1] > 0)]
        assert steps.unique().tolist() == [-1.0 if flipped else 1.0]


@pytest.mark.thorough
def test_it_trains_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    for split, images in (("train", 32), ("test", 20)):
        pixels = random.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{split}.npz", images=pixels, labels=np.arange(images) % 10)
    monkeypatch.setattr(train_photos, "BATCH", 16)
    monkeypatch.setattr(
        affine, "CHANGES", {kind: (some[-1],) for kind, some in affine.CHANGES.items()}
    )
    monkeypatch.chdir(tmp_path)
    words = ". plain.safetensors --epochs 1 --device cpu --json found.json --picture found.png"
    monkeypatch.setattr("sys.argv", ["affine_photos", *words.split()])
    affine_photos.main()
    networks = json.loads(Path("found.json").read_text())["networks"]
    assert list(networks) == ["attention", "plain CNN"]
    assert all(list(each["accuracy"]) == list(affine.CHANGES) for each in networks.values())
    assert Path("plain.safetensors").is_file()
    assert Path("found.png").is_file()
