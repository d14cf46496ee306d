"""The family of Yuxian Meng computes what its author's code computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import capsedge
from capsedge.errors import UsageError
from tests.importers.families.clamped_em import YuxianMeng
from tests.importers.importing import import_with
from tests.importers.test_families import saved

ANSWERS: dict[str, Any] = {
    "iterations": 1,
    "inverse_temperature": 0.02,
    "preprocessing": {"height": 24, "width": 24, "scale": 1 / 255},
}


def images(side: int = 24, count: int = 6) -> Tensor:
    return torch.rand((count, 1, side, side), generator=torch.Generator().manual_seed(3))


def network(iterations: int = 1) -> YuxianMeng:
    """Its images differ enough for its activations to differ."""
    torch.manual_seed(2)
    module = YuxianMeng(iterations).eval()
    with torch.no_grad():
        module.conv1.weight.mul_(2)
    return module


def difference(module: YuxianMeng, model: torch.nn.Module, x: Tensor) -> float:
    """Of poses and scores, relative to the largest."""
    with torch.no_grad():
        poses, scores = module(x)
        found = model(x)
    assert torch.isfinite(poses).all()
    assert scores.std(0).max() > 1e-3
    return max(
        float((a - b).abs().max() / b.abs().max())
        for a, b in ((found.poses, poses), (found.scores, scores))
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("side", [24, 28])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_function_of_its_author(iterations: int, side: int, tmp_path: Path) -> None:
    module = network(iterations)
    size = {"height": side, "width": side, "scale": 1 / 255}
    report = import_with(
        saved(module, tmp_path / "m.pth"),
        tmp_path / "c.safetensors",
        **{**ANSWERS, "iterations": iterations, "preprocessing": size},
    )
    assert report.origin.family == "yuxianmeng"
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    assert difference(module, model, images(side)) <= 1e-5


# Fields of the configuration that other families of EM have instead.
OTHERS = {
    "iterations": {"iterations": 2},
    "temperature": {"inverse_temperature": 0.0202},
    "patches": {"patches": "windows"},
    "coordinates": {"coordinates": "none"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_other_function_is_another(case: str, tmp_path: Path) -> None:
    module = network()
    report = import_with(saved(module, tmp_path / "m.pth"), **ANSWERS)
    other = capsedge.models.build(report.model.config.replace(**OTHERS[case])).eval()
    other.load_state_dict(report.model.state_dict())
    assert difference(module, report.model, images()) <= 1e-5
    assert difference(module, other, images()) > 1e-4


def test_primary_capsules_in_their_order_are_another_function(tmp_path: Path) -> None:
    """Channels that are read by type, as they are made, and not by element."""
    module = network()
    report = import_with(saved(module, tmp_path / "m.pth"), **ANSWERS)
    convs = module.primary_caps.capsules_pose
    with torch.no_grad():
        for part in ("weight", "bias"):
            made = torch.cat([getattr(c, part) for c in convs])
            report.model.get_parameter(f"primary_pose.conv.{part}").copy_(made)
    assert difference(module, report.model, images()) > 1e-3


def test_what_is_asked_for(tmp_path: Path) -> None:
    file = saved(network(), tmp_path / "m.pth")
    without = {k: v for k, v in ANSWERS.items() if k != "inverse_temperature"}
    with pytest.raises(UsageError, match=r"(?s)lambda_.*train\.py.*inverse_temperature=1"):
        import_with(file, **without)
    with pytest.raises(UsageError, match=r"option -r of train\.py"):
        import_with(file, **{**ANSWERS, "iterations": None})


def test_an_inverse_temperature_that_the_family_does_not_take(tmp_path: Path) -> None:
    from tests.importers.families import networks

    file = saved(networks.XifengGuo(), tmp_path / "m.pth")
    with pytest.raises(UsageError, match="no inverse temperature"):
        capsedge.import_checkpoint(
            file,
            description=capsedge.Description(preprocessing={"height": 28, "width": 28}),
            iterations=3,
            inverse_temperature=1.0,
        )


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2])
def test_export_and_infer(iterations: int, tmp_path: Path) -> None:
    """The file that is exported passes its comparison, and answers an image."""
    module = network(iterations)
    report = import_with(saved(module, tmp_path / "m.pth"), **{**ANSWERS, "iterations": iterations})
    capsedge.export(report.model, tmp_path / "m.onnx")
    pixels = np.random.default_rng(3).integers(0, 256, (24, 24)).astype(np.uint8)
    scores = capsedge.load(tmp_path / "m.onnx").predict(pixels)[0].scores
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels / 255).float()[None, None])[1][0]
    assert np.abs(np.asarray(scores) - wanted.numpy()).max() <= 1e-4
