"""SegCaps as by LaLonde and Bagci 2018, and its way through export, verify and quantize."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, pad

import capsedge
from capsedge import Preprocessing
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters.traced_routing import trace_routing
from capsedge.models import build, get_config
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.configs import CapsuleMap, Conv, SegCapsConfig, config_from_dict
from capsedge.models.segcaps import MapCapsules, SegCaps
from capsedge.runtime.session.masks import mask_png
from tests.cli.running import capsedge as command

SMALL = SegCapsConfig(
    class_names=("back", "front"),
    preprocessing=Preprocessing(8, 8, 1),
    stem=(Conv(4, 3, padding="same"),),
    down=(CapsuleMap(2, 4), CapsuleMap(2, 4)),
    up=(CapsuleMap(2, 4),),
    kernel=3,
    capsule_dim=4,
    iterations=2,
)


def network(config: SegCapsConfig = SMALL, seed: int = 1) -> SegCaps:
    torch.manual_seed(seed)
    model = build(config).eval()
    assert isinstance(model, SegCaps)
    return model


def test_the_trace_names_layers_and_their_maps():
    layers = (*(CapsuleMap(2, 4), CapsuleMap(2, 4, False), CapsuleMap(3, 4), CapsuleMap(2, 4)),)
    up = (CapsuleMap(2, 4), CapsuleMap(2, 4), CapsuleMap(1, 4))
    prep = Preprocessing(8, 16, 1)
    model = network(dataclasses.replace(SMALL, preprocessing=prep, down=layers, up=up))
    traced = trace_routing(model, model, torch.rand(2, 1, 8, 16))
    grids = {layer.name: layer.grid for layer in traced.layers}
    assert grids == {
        "down.0": (4, 8), "down.2": (2, 4), "down.3": (2, 4), "up.0": (4, 8), "up.1": (4, 8),
    }  # fmt: skip
    assert traced.sizes["trace/down.2/couplings"] == (2, 2, 4, 2, 3)
    once = dataclasses.replace(SMALL, down=(CapsuleMap(1, 4),) * 2, up=(CapsuleMap(1, 4),))
    model = network(once)
    with pytest.raises(UnsupportedModelError, match="no routing to trace"):
        trace_routing(model, model, torch.rand(1, 1, 8, 8))


def squash(s: Tensor) -> Tensor:
    n2 = s.square().sum(-1, keepdim=True)
    return s * n2 / (1 + n2) / (n2 + 1e-8).sqrt()


def routed(layer: MapCapsules, u: Tensor, scale: int, iterations: int) -> Tensor:
    """Locally constrained dynamic routing ``[N, I, P, H, W]``, child by child as in the authors' code."""
    votes = []
    for child in u.unbind(1):
        if scale == 2:
            votes.append(conv_transpose2d(child, layer.votes.weight, stride=2, padding=1))
        else:
            total = (
                max((u.shape[-1] // -scale - 1) * -scale + 3 - u.shape[-1], 0) if scale < 0 else 2
            )
            low = total // 2
            padded = pad(child, (low, total - low, low, total - low))
            votes.append(conv2d(padded, layer.votes.weight, stride=max(1, -scale)))
    types, dim = layer.bias.shape
    v = torch.stack([x.reshape(len(u), types, dim, *x.shape[2:]) for x in votes], 1)
    v = v.permute(0, 1, 4, 5, 2, 3)  # [N, I, H, W, J, P]
    logits = torch.zeros(v.shape[:-1])
    for t in range(iterations):
        pose = squash((logits.softmax(-1).unsqueeze(-1) * v).sum(1) + layer.bias)
        if t + 1 < iterations:
            logits = logits + (v * pose.unsqueeze(1)).sum(-1)
    return pose.permute(0, 3, 4, 1, 2)


@pytest.mark.parametrize("scale", [-2, 1, 2])
@pytest.mark.parametrize("layer", [CapsuleMap(3, 4), CapsuleMap(3, 4, routed=False)])
def test_a_layer_is_that_of_the_authors(scale: int, layer: CapsuleMap):
    torch.manual_seed(2)
    capsules = MapCapsules(5, layer, 3, scale, SMALL)
    u = torch.randn(2, 3, 5, 6, 6)
    found, couplings = capsules(u)
    wanted = routed(capsules, u, scale, SMALL.iterations if layer.routed else 1)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert couplings.shape == (2, found.shape[3] * found.shape[4] * 3, 3)
    torch.testing.assert_close(couplings.sum(-1), torch.ones(couplings.shape[:2]))


@pytest.mark.parametrize(("names", "maps"), [(("a", "b"), 1), (("a", "b", "c"), 3)])
def test_outputs(names: tuple[str, ...], maps: int):
    model = network(dataclasses.replace(SMALL, class_names=names))
    out = model(torch.rand(2, 1, 8, 8))
    assert out.scores.shape == (2, maps, 8, 8)
    assert out.poses.shape == (2, maps, 8, 8, 4)
    torch.testing.assert_close(out.scores, out.poses.norm(dim=-1))


def test_the_configuration_is_read_back():
    config = get_config("segcaps")
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"class_names": ("a",)}, "1 classes"),
        ({"up": ()}, "2 layers down and 0 up"),
        ({"kernel": 4}, "kernel is 4"),
        ({"up": (CapsuleMap(2, 5),)}, "poses of different sizes"),
        ({"stem": (Conv(4, 3),)}, "keeps the size"),
        ({"preprocessing": Preprocessing(9, 8, 1)}, "halves its map 1 times; 9x8"),
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"task": "single-label"}, "Unknown task"),
    ],
)
def test_refused(changes: dict[str, object], what: str):
    with pytest.raises(UsageError, match=what):
        dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, its file, and images whose masks are what the network finds, but for a row."""
    folder = tmp_path_factory.mktemp("segcaps")
    model = network()
    with torch.no_grad():
        model.pixels.votes.weight *= 2  # about half of the pixels are then foreground
    save_checkpoint(model, folder / "m.safetensors")
    done = command("export", "--checkpoint", folder / "m.safetensors", "-o", folder / "m.onnx")
    assert done.returncode == 0, done.stderr
    for name in ("images", "masks"):
        (folder / "data" / name).mkdir(parents=True)
    rng = np.random.default_rng(3)
    with capsedge.load(folder / "m.onnx") as session:
        assert session.metadata is not None
        assert session.metadata.task == "segmentation"
        for k in range(24):
            pixels = rng.integers(0, 256, (8, 8), np.uint8)
            mask = session.predict(pixels)[0].mask
            assert mask is not None
            mask[0] = 0
            Image.fromarray(pixels).save(folder / "data" / "images" / f"{k}.png")
            (folder / "data" / "masks" / f"{k}.png").write_bytes(mask_png(mask, ("a", "b")))
    return folder


@pytest.mark.thorough
def test_verify_compares_masks(place: Path):
    run = command("verify", place / "m.onnx", "--checkpoint", place / "m.safetensors", "--json")
    assert run.returncode == 0, run.stdout
    masks = json.loads(run.stdout)["samples"]["masks"]
    assert masks["changed"] <= 0.001 * masks["pixels"]
    assert masks["mean_dice"] >= 0.999
    table = command(
        "verify",
        place / "m.onnx",
        "--checkpoint",
        place / "m.safetensors",
        "--data",
        place / "data",
    )
    assert table.returncode == 0, table.stdout
    assert "pixels change class" in table.stdout


@pytest.mark.thorough
def test_quantize_is_judged_by_dice(place: Path):
    words = ("--calib-data", place / "data", "--max-drop", 100, "--json")
    run = command("quantize", place / "m.onnx", "-o", place / "int8.onnx", *words)
    assert run.returncode == 0, run.stderr
    outcome = json.loads(run.stdout)["outcome"]
    assert outcome["metric"] == "dice"
    assert 0 < outcome["accuracy_fp32"] < 1
    assert outcome["masks"]["mean_dice"] == outcome["accuracy"]
    iou = command(
        "quantize", place / "m.onnx", "-o", place / "iou.onnx", *words, "--overlap", "iou"
    )
    assert json.loads(iou.stdout)["outcome"]["metric"] == "iou"
    checked = command("verify", place / "int8.onnx", "--checkpoint", place / "m.safetensors")
    assert "Masks: " in checked.stdout


@pytest.mark.thorough
def test_a_mask_that_does_not_fit_is_named(place: Path):
    data = place / "wrong"
    for name in ("images", "masks"):
        (data / name).mkdir(parents=True)
        Image.new("L", (8, 8 if name == "images" else 9)).save(data / name / "x.png")
    run = command("quantize", place / "m.onnx", "-o", place / "no.onnx", "--calib-data", data)
    assert run.returncode == 2
    assert "x.png does not fit its image." in run.stderr
