"""``capsedge prune`` of a SegCaps: types and elements, tied by joined maps, and Dice as the gate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import capsedge
from capsedge.cli import app
from capsedge.errors import ParityError, UsageError
from capsedge.models.checkpoint import load_checkpoint, save_checkpoint
from capsedge.models.configs import CapsuleMap, Conv, SegCapsConfig
from capsedge.models.segcaps import MapCapsules, SegCaps
from capsedge.models.training.mask_training import overlap_of
from capsedge.optimization.prune_criteria import choose, look_ahead, multiply_adds
from capsedge.optimization.prune_data import Evaluator, read, read_test
from capsedge.optimization.prune_exact import remove_exactly
from capsedge.optimization.prune_groups import groups, keep_units
from capsedge.runtime.session.masks import MaskOverlap, check_above_constant
from tests.models.test_segcaps import SMALL, network
from tests.models.training.test_mask_training import draw

FOUR = dataclasses.replace(
    SMALL,
    stem=(Conv(8, 3, padding="same"), Conv(8, 3, padding="same", batch_norm=True)),
    down=(CapsuleMap(2, 8), CapsuleMap(3, 4, False), CapsuleMap(2, 8, False), CapsuleMap(3, 8)),
    up=(CapsuleMap(2, 4), CapsuleMap(2, 8), CapsuleMap(2, 8, False)),
)
NAMES = [
    "stem.0 channels", *(f"down.{k}.types" for k in range(4)), *(f"up.{k}.types" for k in range(3)),
    "down.0 elements", "down.1 and up.0 elements", "down.2 elements", "down.3 elements",
    "up.1 elements", "stem and up.2 elements",
]  # fmt: skip


@torch.no_grad()
def outputs(model: SegCaps) -> list[torch.Tensor]:
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    found = model.double()(images.double())
    return [found.scores, found.poses]


def silenced(model: SegCaps, name: str, unit: int) -> None:
    """Set all that computes a unit to zero."""
    group = next(g for g in groups(model) if g.name == name)
    keep = [k for k in range(group.units) if k != unit]
    for each in group.written:
        value = model.state_dict()[each.tensor]
        index = torch.arange(value.shape[each.dim]).reshape(each.outer, group.units, each.inner)
        kept = set(index[:, keep].flatten().tolist())
        if not each.tensor.endswith("running_var"):
            gone = [k for k in range(value.shape[each.dim]) if k not in kept]
            value.index_fill_(each.dim, torch.tensor(gone), 0)


def test_the_groups_tie_what_is_joined() -> None:
    assert [group.name for group in groups(network(FOUR))] == NAMES
    bare = dataclasses.replace(SMALL, stem=(), up=(CapsuleMap(2, 1),))
    names = [group.name for group in groups(network(bare))]
    assert names == [
        "down.0.types",
        "down.1.types",
        "up.0.types",
        "down.0 elements",
        "down.1 elements",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_smaller_network_is_one_of_its_configuration(name: str) -> None:
    model = network(FOUR)
    units = next(g.units for g in groups(model) if g.name == name)
    smaller = keep_units(model, {name: tuple(range(1, units))})
    assert next(g.units for g in groups(smaller) if g.name == name) == units - 1
    others = {g.name: g.units for g in groups(model) if g.name != name}
    assert others == {g.name: g.units for g in groups(smaller) if g.name != name}
    assert outputs(smaller)[0].shape == (2, 1, 8, 8)
    assert multiply_adds(smaller.config) < multiply_adds(model.config)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("down.0.types", "down.3.types",
                                                                "up.0.types", "up.1.types")])  # fmt: skip
def test_units_of_zeros_go_without_a_trace(name: str) -> None:
    """All but the types of layers that are routed, whose zero votes take their share."""
    model = network(FOUR)
    silenced(model, name, 1)
    expected = outputs(model)
    units = next(g.units for g in groups(model) if g.name == name)
    keep = tuple(k for k in range(units) if k != 1)
    for found, wanted in zip(outputs(keep_units(model, {name: keep})), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    if "stem and" not in name:
        assert remove_exactly(model.float())[1] == {name: keep}


def test_types_of_routed_layers_stay_without_data() -> None:
    model = network(FOUR)
    silenced(model, "down.3.types", 0)
    assert remove_exactly(model)[0] is model


def test_the_multiply_adds_are_those_of_the_layers() -> None:
    """Convolutions, transposed ones, and two passes over the votes in each iteration."""
    model, counted = network(FOUR), 0

    def count(module: nn.Module, given: tuple[torch.Tensor, ...], out: object) -> None:
        nonlocal counted
        if isinstance(module, nn.ConvTranspose2d):
            counted += given[0].numel() * module.weight[0].numel()
        elif isinstance(module, nn.Conv2d):
            assert isinstance(out, torch.Tensor)
            counted += out.numel() * module.weight[0].numel()
        elif isinstance(module, MapCapsules) and module.iterations > 1:
            n, children, _, height, width = given[0].shape
            scale = 0.25 if module.votes.stride == (2, 2) else 1
            scale = 4 if isinstance(module.votes, nn.ConvTranspose2d) else scale
            votes = n * children * height * width * scale * module.layer.types * module.layer.dim
            counted += round(2 * module.iterations * votes)

    for module in model.modules():
        module.register_forward_hook(count)
    model(torch.rand(1, 1, 8, 8))
    assert multiply_adds(FOUR) == counted


@pytest.mark.thorough
def test_a_choice_keeps_joined_poses_equal() -> None:
    model = network(FOUR)
    removable, whole = groups(model), multiply_adds(FOUR)
    kept = choose(FOUR, removable, look_ahead(model, removable), whole / 2)
    smaller = keep_units(model, kept)
    config = smaller.config
    assert isinstance(config, SegCapsConfig)
    assert multiply_adds(config) <= whole / 2
    assert config.down[1].dim == config.up[0].dim
    assert isinstance(config.stem, tuple)
    assert config.stem[-1].channels == config.up[2].dim


def test_dice_decides(tmp_path: Path) -> None:
    """The held-out and test images are those of the folder; what has no masks to speak of is refused."""
    for split, count, seed in (("train", 40, 4), ("test", 12, 5)):
        draw(tmp_path / split, count, seed=seed)
    model, other = network(), network(seed=2)
    images = read(tmp_path, model, None, 0)
    assert (len(images.training), len(images.held_out), images.unseen) == (30, 10, False)
    assert images.warnings[0].startswith("the parent may have been trained")
    assert "mean Dice there" in images.warnings[0]
    assert images.warnings[1] == "only 10 images are held out for the search"
    test = read_test(tmp_path, model, None, images)
    assert test is not None
    outcome = Evaluator(model, test).outcome(other)
    assert outcome.metric == "dice"
    assert outcome.reference == overlap_of(model, test).mean_dice
    assert outcome.accuracy == overlap_of(other, test).mean_dice
    draw(tmp_path / "validation", 10, seed=6)
    assert len(read(tmp_path, model, None, 0).held_out) == 10
    model.training_split = None
    everywhere = MaskOverlap(("a", "b"), background=True)
    everywhere.update([np.array([[0, 1]], np.uint8)], [np.array([[1, 1]], np.uint8)])
    with pytest.raises(
        UsageError, match=r"mean Dice is 0\.6667; a single class everywhere has 0\.6667"
    ):
        check_above_constant(everywhere, "m", "d")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SegCaps that finds squares, with their images."""
    place = tmp_path_factory.mktemp("squares")
    for split, count, seed in (("train", 160, 4), ("validation", 20, 7), ("test", 24, 5)):
        draw(place / "data" / split, count, seed=seed)
    start = network(dataclasses.replace(FOUR, class_names=("ground", "square")))
    save_checkpoint(start, place / "start.safetensors")
    capsedge.train(
        place / "data", place / "run", model=str(place / "start.safetensors"), epochs=12, batch=16,
        learning_rate=3e-3, shift=0,
    )  # fmt: skip
    return place


@pytest.mark.thorough
def test_prunes_and_works_on(trained: Path) -> None:
    checkpoint, small = trained / "run/model.safetensors", trained / "small.safetensors"
    arguments = ["prune", checkpoint, "-o", small, "--data", trained / "data", "--target-speedup",
                 2, "--epochs", 3, "--max-drop", 20, "--json"]  # fmt: skip
    ran = CliRunner().invoke(app, list(map(str, arguments)))
    assert ran.exit_code == 0, ran.exception
    report = json.loads(ran.stdout)
    assert report["speedup"] >= 2
    assert report["gate"] == {"metric": "dice", "max_drop": 20}
    assert report["images"]["searched_on"] == "data, validation split, 20 images"
    assert report["images"]["evaluated_on"] == "data, test split, 24 images"
    (done,) = report["rounds"]
    assert 0.5 < done["held_out_dice"] <= 1
    assert "mean Dice" in ran.stderr
    model = load_checkpoint(small)
    assert multiply_adds(model.config) == report["after"]["multiply_adds"]
    exported = capsedge.export(model, trained / "small.onnx")
    assert exported.passed
    capsedge.verify(small, trained / "small.onnx").check()


@pytest.mark.thorough
def test_the_gate_is_half_a_point_of_dice(trained: Path) -> None:
    checkpoint = trained / "run/model.safetensors"
    with pytest.raises(ParityError, match=r"points of mean Dice lost, 0\.5 allowed") as caught:
        capsedge.prune(checkpoint, trained / "s.safetensors", data=trained / "data",
                       target_speedup=20, epochs=1, learning_rate=1e-9)  # fmt: skip
    rows = dict(caught.value.report.rows())
    assert rows["against the parent"].startswith("mean Dice 0.")


@pytest.mark.thorough
def test_without_a_target_dice_ends_the_search(trained: Path) -> None:
    report = capsedge.prune(
        trained / "run/model.safetensors", trained / "t.safetensors", data=trained / "data",
        epochs=1, max_drop=100, criterion="look-ahead",
    )  # fmt: skip
    assert len(report.rounds) >= 3
    assert all(each.metric == "dice" for each in report.rounds)
