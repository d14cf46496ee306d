"""HR-SEMobileCapsNet, PSCapsNet and Q-CapsNets compute what their authors' code computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import ArtefactError, UsageError
from capsedge.models.configs import PSCapsNetConfig, ResNet
from capsedge.models.pscapsnet import AveragePool
from tests.importers.families import deep_stems as n
from tests.importers.importing import import_with

PIXELS = {"mean": (0.5,), "std": (0.5,), "scale": 1 / 255}


def of(side: int, **more: Any) -> dict[str, Any]:
    return {"preprocessing": {"height": side, "width": side, "scale": 1 / 255}, **more}


K_MEANS, DYNAMIC = {"iterations": 3, "variant": "k-means"}, {"iterations": 3, "variant": "dynamic"}
Case = tuple[str, Callable[[], nn.Module], dict[str, Any], tuple[int, int, int]]
CASES: dict[str, Case] = {
    "hr-se": ("hr-semobilecapsnet", n.HRSEMobileCapsNet, of(32), (1, 32, 32)),
    "q-capsnets": ("q-capsnets", n.QCapsNet, of(28), (1, 28, 28)),
    "k-means": ("pscapsnet", n.PSCapsNet, of(28, **K_MEANS), (1, 28, 28)),
    "k-means, 1 iteration": (
        "pscapsnet",
        lambda: n.PSCapsNet(1),
        of(28, **{**K_MEANS, "iterations": 1}),
        (1, 28, 28),
    ),
    "k-means, four stages": (
        "pscapsnet",
        lambda: n.PSCapsNet(fourth=True, channels=3),
        of(64, **K_MEANS),
        (3, 64, 64),
    ),
    "k-means, own weights": (
        "pscapsnet",
        lambda: n.PSCapsNet(own=True),
        of(28, **K_MEANS),
        (1, 28, 28),
    ),
    "dynamic": ("pscapsnet", lambda: n.PSCapsNet(k_means=False), of(28, **DYNAMIC), (1, 28, 28)),
    "dynamic, own weights": (
        "pscapsnet",
        lambda: n.PSCapsNet(k_means=False, own=True),
        of(28, **DYNAMIC),
        (1, 28, 28),
    ),
}


def saved(module: nn.Module, path: Path) -> Path:
    torch.save(module.state_dict(), path)
    return path


def made(case: Case) -> nn.Module:
    torch.manual_seed(4)
    return case[1]().eval()


def scores(module: nn.Module, x: Tensor) -> Tensor:
    """Lengths, of networks that return poses too."""
    with torch.no_grad():
        out: Tensor = module(x)
    return out.norm(dim=-1) if out.ndim == 3 else out


def images(shape: tuple[int, int, int]) -> Tensor:
    """Blots of several sizes, each image another."""
    draw = torch.Generator().manual_seed(3)
    coarse = [torch.rand((2, shape[0], k, k), generator=draw) for k in (2, 4, 8)]
    return torch.cat([nn.functional.interpolate(c, shape[1:]) for c in coarse])


def difference(model: nn.Module, wanted: Tensor, x: Tensor) -> float:
    with torch.no_grad():
        found = model(x).scores
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_the_function_of_its_author(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    family, _, answers, shape = case
    module = made(case)
    report = import_with(saved(module, tmp_path / "m.pt"), tmp_path / "c.safetensors", **answers)
    assert report.origin.family == family
    wanted = scores(module, images(shape))
    assert wanted.std(0).max() > 1e-3 * wanted.abs().max()  # an image says something
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    assert difference(model, wanted, images(shape)) <= 1e-5


# Equal keys and shapes, another function.
CONFUSED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "dynamic for k-means": ("dynamic", n.PSCapsNet),
    "k-means for dynamic": ("k-means", lambda: n.PSCapsNet(k_means=False)),
    "k-means: iterations": ("k-means, own weights", lambda: n.PSCapsNet(2, own=True)),
    "k-means: logits added up": ("k-means", lambda: n.PSCapsNet(accumulated=True)),
    "hr-se: iterations": ("hr-se", lambda: n.HRSEMobileCapsNet(2)),
    "hr-se: softmax over the children": ("hr-se", lambda: n.HRSEMobileCapsNet(softmax=1)),
    "hr-se: pixels for channels": ("hr-se", lambda: n.HRSEMobileCapsNet(by_channel=False)),
    "q-capsnets: types not divided": ("q-capsnets", lambda: n.QCapsNet(divided=False)),
}


@pytest.mark.parametrize("name", CONFUSED)
def test_the_other_function_is_another(name: str, tmp_path: Path) -> None:
    """The comparison with the author's code, whose bound is 1e-5, cannot take one for the other."""
    (_, _, answers, shape), make = CASES[CONFUSED[name][0]], CONFUSED[name][1]
    torch.manual_seed(4)
    module = make().eval()
    report = import_with(saved(module, tmp_path / "m.pt"), **answers)
    assert difference(report.model, scores(module, images(shape)), images(shape)) > 5e-5


def test_what_the_file_of_a_pscapsnet_cannot_tell(tmp_path: Path) -> None:
    file = saved(n.PSCapsNet(), tmp_path / "m.pt")
    answers = of(28, **K_MEANS)
    for left_out, says in (
        ("variant", r"(?s)--routing_type.*--variant k-means\|dynamic"),
        ("iterations", "--num_iterations"),
        ("preprocessing", "--size"),
    ):
        rest = {key: value for key, value in answers.items() if key != left_out}
        with pytest.raises(UsageError, match=says):
            import_with(file, **rest)


def test_a_size_that_the_children_do_not_fit(tmp_path: Path) -> None:
    file = saved(n.HRSEMobileCapsNet(), tmp_path / "m.pt")
    with pytest.raises(ArtefactError, match=r"(?s)'classes.weight' is.*Check --size"):
        import_with(file, **of(40))


def test_keras_tensors_of_q7_capsnets_by_a_key_map(tmp_path: Path) -> None:
    """Convolutions ``[K, K, in, out]``, children by position, routing weight ``[J, I, O, D]``."""
    draw = np.random.default_rng(4)
    stored = {
        "conv2d/kernel:0": draw.normal(0, 0.3, (5, 5, 1, 6)), "conv2d/bias:0": draw.normal(0, 1, 6),
        "primary/kernel:0": draw.normal(0, 0.3, (5, 5, 6, 8)), "primary/bias:0": draw.normal(0, 1, 8),
        "capsule/weights:0": draw.normal(0, 0.5, (3, 128, 6, 4)),
    }  # fmt: skip
    np.savez(tmp_path / "q7.npz", **{k: v.astype(np.float32) for k, v in stored.items()})
    (tmp_path / "keys.toml").write_text("""
[tensors]
"conv2d/kernel:0" = ["stem.0.weight", {transpose = [3, 2, 0, 1]}]
"conv2d/bias:0" = "stem.0.bias"
"primary/kernel:0" = ["primary.conv.weight", {transpose = [3, 2, 0, 1]}]
"primary/bias:0" = "primary.conv.bias"
"capsule/weights:0" = ["classes.weight", {transpose = [1, 0, 2, 3]}]

[model]
epsilon = 1e-16
""")
    report = import_with(
        tmp_path / "q7.npz", key_map=tmp_path / "keys.toml", **of(23, iterations=3)
    )
    w = {k.split(":")[0]: torch.from_numpy(v).float() for k, v in stored.items()}
    x = images((1, 23, 23))

    def squashed(s: Tensor) -> Tensor:
        return s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, keepdim=True))

    y = nn.functional.conv2d(x, w["conv2d/kernel"].permute(3, 2, 0, 1), w["conv2d/bias"]).relu()
    y = nn.functional.conv2d(y, w["primary/kernel"].permute(3, 2, 0, 1), w["primary/bias"], 2)
    u = squashed(y.permute(0, 2, 3, 1).reshape(len(x), -1, 4))
    votes = torch.einsum("jiod,nid->nijo", w["capsule/weights"], u)
    b = torch.zeros(votes.shape[:3])
    for _ in range(3):
        v = squashed((b.softmax(2).unsqueeze(-1) * votes).sum(1))
        b = b + (votes * v.unsqueeze(1)).sum(-1)
    assert difference(report.model, v.norm(dim=-1), x) <= 1e-5


def test_quantized_networks_of_q_capsnets_are_warned_of(tmp_path: Path) -> None:
    report = capsedge.import_checkpoint(saved(n.QCapsNet(), tmp_path / "m.pt"))
    assert any("full-precision" in note for note in report.origin.notes)
    assert report.model.config.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize("grid", [(7, 7), (8, 5), (4, 12), (3, 4)])
def test_pooling_is_that_of_pytorch(grid: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *grid)
    wanted = nn.functional.adaptive_avg_pool2d(x, 4)
    torch.testing.assert_close(AveragePool(grid, 4)(x), wanted)


@pytest.mark.parametrize(
    "change",
    [{"update": "mean"}, {"primary_dim": 7}, {"pooled": -1}, {"epsilon": 0.0}],
)
def test_impossible_configurations(change: dict[str, Any]) -> None:
    values = {
        "class_names": ("a", "b"),
        "preprocessing": capsedge.Preprocessing(28, 28, 1),
        "stem": ResNet(((8, 1, 1),)),
        "primary_dim": 4,
    }
    PSCapsNetConfig(**values)
    with pytest.raises(UsageError):
        PSCapsNetConfig(**{**values, **change})
