"""DeepCaps, the original and its ports: each computes what its author's code computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import capsedge
from capsedge.errors import UsageError
from capsedge.models import build
from tests.importers.families import deepcaps as d
from tests.importers.importing import import_with

SIZE = {"height": 28, "width": 28}
FAMILIES = {True: "hopefulrational", False: "ugenteraan"}


def images(side: int = 28) -> Tensor:
    return torch.rand((5, 1, side, side), generator=torch.Generator().manual_seed(3))


def port(hopeful: bool) -> d.Port:
    torch.manual_seed(6)
    return d.Port(hopeful).eval()


def imported(state: dict[str, Tensor], folder: Path, **answers: Any) -> Any:
    torch.save(state, folder / "m.pth")
    return import_with(
        folder / "m.pth", folder / "c.safetensors", **{"preprocessing": SIZE, **answers}
    )


def difference(model: torch.nn.Module, wanted: Tensor, x: Tensor) -> float:
    """Of the poses, relative to the largest element."""
    with torch.no_grad():
        found = model(x).poses
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("side", [28, 32])
@pytest.mark.parametrize("hopeful", [True, False])
def test_the_ports(hopeful: bool, side: int, tmp_path: Path) -> None:
    module, x = port(hopeful), images(side)
    size = {"height": side, "width": side}
    report = imported(module.authors(), tmp_path, preprocessing=size)
    assert report.origin.family == FAMILIES[hopeful]
    assert any("decoder" in note for note in report.origin.notes)
    with torch.no_grad():
        wanted = module(x)
    assert wanted.std(0).max() > 0.01
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    assert difference(model, wanted, x) <= 1e-5


@pytest.mark.parametrize("hopeful", [True, False])
def test_one_port_is_not_the_other(hopeful: bool, tmp_path: Path) -> None:
    """Their tensors have the same shapes."""
    module, x = port(hopeful), images()
    right = imported(module.authors(), tmp_path).model
    other = d.Port(not hopeful).eval()
    other.load_state_dict(dict(zip(other.state_dict(), module.state_dict().values(), strict=True)))
    wrong = imported(other.authors(), tmp_path).model
    with torch.no_grad():
        wanted = module(x)
    assert difference(right, wanted, x) <= 1e-5
    assert difference(wrong, wanted, x) > 1e-3


MUTATIONS: dict[str, tuple[bool, dict[str, Any]]] = {
    "elements of votes": (True, {"routed_squash": "pose"}),
    "iterations of the routed cell": (True, {"routed_iterations": 2}),
    "iterations of the classes": (True, {"iterations": 2}),
    "bias in all iterations": (False, {"last_bias": False}),
    "stem": (False, {"squashed_stem": False}),
    "softmax": (False, {"routed_softmax": "types"}),
    "mixed votes": (False, {"vote_layout": "mixed"}),
}


@pytest.mark.parametrize("case", MUTATIONS)
def test_another_function_is_noticed(case: str, tmp_path: Path) -> None:
    hopeful, fields = MUTATIONS[case]
    module, x = port(hopeful), images()
    model = imported(module.authors(), tmp_path).model
    other = build(model.config.replace(**fields)).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        wanted = module(x)
    assert difference(model, wanted, x) <= 1e-5
    assert difference(other, wanted, x) > 5e-5


VARIANTS = ("2019-11", "2019-08", "2019-03")


@pytest.mark.thorough
@pytest.mark.parametrize("start", [1, 17])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_original(variant: str, start: int, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from tests.importers.families.keras_networks import write

    weights = d.keras_weights(np.random.default_rng(4), start)
    file = write(tmp_path / "m.h5", weights)
    answers = {"iterations": 3, "preprocessing": SIZE}
    report = import_with(file, variant=variant, **answers)
    assert report.origin.family == "brjathu"
    x = images()
    wanted = d.keras(x.permute(0, 2, 3, 1).numpy().astype(float), weights, variant)
    assert wanted.std(0).max() > 0.01
    scores = {}
    for name in VARIANTS:
        model = import_with(file, variant=name, **answers).model
        with torch.no_grad():
            scores[name] = np.abs(model(x).scores.numpy() - wanted).max() / wanted.max()
    assert scores.pop(variant) <= 1e-5
    assert min(scores.values()) > 1e-4
    with pytest.raises(UsageError, match="Which variant of brjathu"):
        import_with(file, **answers)


@pytest.mark.slow
@pytest.mark.parametrize("hopeful", [True, False])
def test_export_and_infer(hopeful: bool, tmp_path: Path) -> None:
    module = port(hopeful)
    report = imported(module.authors(), tmp_path)
    capsedge.export(report.model, tmp_path / "m.onnx")
    pixels = np.random.default_rng(3).integers(0, 256, (28, 28)).astype(np.uint8)
    scores = capsedge.load(tmp_path / "m.onnx").predict(pixels)[0].scores
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels / 255).float()[None, None])[0].norm(dim=-1)
    assert np.abs(np.asarray(scores) - wanted.numpy()).max() <= 1e-5
