"""Models by name: configuration round trip, output shapes, options of each family."""

from __future__ import annotations

import json

import pytest
import torch

from capsedge.errors import UsageError
from capsedge.models import MODELS, build, get_config
from capsedge.models.configs import config_from_dict

SMALL = ["digits-dynamic", "digits-em", "digits-attention"]


def images(name: str, batch: int = 2) -> torch.Tensor:
    p = get_config(name).preprocessing
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, p.channels, p.height, p.width, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_configuration_survives_json(name: str) -> None:
    config = MODELS[name]
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "name", [n for n in MODELS if not any(w in n for w in ("diverse", "100", "segcaps", "clutter"))]
)
def test_forward(name: str) -> None:
    torch.manual_seed(0)
    model = build(name).eval()
    with torch.no_grad():
        out = model(images(name))
    config = model.config
    assert out.scores.shape == (2, config.classes)
    assert out.poses.shape[:2] == (2, config.classes)
    assert out.couplings.shape[0] == 2
    assert out.couplings.shape[2] == config.classes
    assert all(bool(t.isfinite().all()) for t in out)
    if model.score_name == "lengths":
        assert bool(((out.scores >= 0) & (out.scores <= 1)).all())


def test_forward_of_a_segmentation() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        out = build("digits-clutter").eval()(images("digits-clutter"))
    assert out.scores.shape == (2, 1, 32, 32)
    assert bool(((out.scores >= 0) & (out.scores <= 1)).all())


@pytest.mark.parametrize("name", SMALL)
def test_a_batch_is_its_images(name: str) -> None:
    torch.manual_seed(0)
    model = build(name).eval()
    x = images(name, 3)
    with torch.no_grad():
        together, alone = model(x).scores, torch.cat([model(x[k : k + 1]).scores for k in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_learns(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, iterations=3).train()
    out = model(images(name, 4))
    weights = torch.randn(out.scores.shape, generator=torch.Generator().manual_seed(1))
    loss = (out.scores * weights).sum()
    if model.decoder is not None:
        labels = torch.tensor([1, 2, 3, 4])
        loss = loss + model.reconstruct_class(out.poses, labels).square().sum()
    loss.backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert bool(value.grad.isfinite().all()), parameter
        assert bool((value.grad != 0).any()), parameter


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["digits-attention", "attention-cifar100-simple"])
def test_skipping_dead_passes_in_training_changes_nothing(name: str) -> None:
    for iterations in (1, 2, 3, 4):
        torch.manual_seed(0)
        model = build(name, iterations=iterations).eval()
        x = images(name, 1)
        with torch.no_grad():
            whole = model(x)
            model.training = True  # only this flag: the normalizations stay in evaluation mode
            cone = model(x)
        assert torch.equal(whole.scores, cone.scores)
        assert torch.equal(whole.couplings, cone.couplings)


def test_sequential_and_concurrent_schedules_agree_for_one_pass_only() -> None:
    x = images("digits-attention")
    scores = {}
    for concurrent in (True, False):
        for iterations in (1, 3):
            torch.manual_seed(0)
            model = build("digits-attention", concurrent=concurrent, iterations=iterations).eval()
            with torch.no_grad():
                scores[concurrent, iterations] = model(x).scores
    assert torch.equal(scores[True, 1], scores[False, 1])
    assert not torch.allclose(scores[True, 3], scores[False, 3], atol=1e-6)


def test_leaky_routing_lets_a_child_choose_no_parent() -> None:
    torch.manual_seed(0)
    model = build("digits-dynamic", leaky=True).eval()
    with torch.no_grad():
        out = model(images("digits-dynamic"))
    shares = out.couplings.sum(-1)
    assert bool((shares < 1).all())
    assert bool((shares > 0).all())


def test_reconstruction_decodes_one_class_at_a_time() -> None:
    torch.manual_seed(0)
    model = build("digits-dynamic").eval()
    with torch.no_grad():
        poses = model(images("digits-dynamic")).poses
        every = model.reconstruct(poses)
        third = model.reconstruct_class(poses, torch.tensor([3, 3]))
    assert every.shape == (2, 10, 1, 28, 28)
    torch.testing.assert_close(every[:, 3], third)
    with pytest.raises(UsageError, match="no reconstruction decoder"):
        build("digits-em").reconstruct(poses)


def test_inverse_temperatures_grow() -> None:
    values = build("digits-em", iterations=4).config.inverse_temperatures  # type: ignore[attr-defined]
    assert len(values) == 4
    assert list(values) == sorted(values)
    assert values[0] == pytest.approx(0.05 * build("digits-em").config.inverse_temperature)  # type: ignore[attr-defined]


def test_unknown_name_offers_the_closest() -> None:
    with pytest.raises(UsageError, match="capsnet-mnist"):
        get_config("capsnet-mnits")


@pytest.mark.parametrize("iterations", [0, -1])
def test_no_iterations_is_refused(iterations: int) -> None:
    with pytest.raises(UsageError, match="iterations"):
        build("digits-dynamic", iterations=iterations)


def test_damaged_configurations_are_refused() -> None:
    good = get_config("digits-em").to_dict()
    for change in ({"architecture": "other"}, {"unknown": 1}, {"task": "guess"}, {"stem": 3}):
        with pytest.raises(UsageError):
            config_from_dict({**good, **change})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits-attention", {}),
        ("digits-attention", {"matrix_pose": False, "pose_dim": 5}),
        pytest.param("attention-cifar10-simple", {}, marks=pytest.mark.thorough),
    ],
)
def test_the_first_attention_pass_in_training_is_the_operator(
    name: str, changes: dict[str, object]
) -> None:
    torch.manual_seed(0)
    model = build(name, **changes).eval()
    x = images(name, 2)
    with torch.no_grad():
        wanted = model(x)
        for layer in model.capsules:
            layer.training = True
        found = model(x)
    torch.testing.assert_close(found.scores, wanted.scores, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.poses, wanted.poses, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.couplings, wanted.couplings, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"softmax": "rows"},
        {"class_squash": "poses"},
        {"primary_grouping": "x"},
        {"epsilon": 0.0},
        {"class_squash": "parents", "class_bias": True},
    ],
)
def test_dialects_that_are_impossible_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        build("digits-dynamic", **changes)


def test_configurations_of_before_the_dialects_mean_the_paper() -> None:
    config = MODELS["digits-dynamic"]
    added = {
        "primary_grouping", "primary_squash", "softmax", "class_squash", "vote_bias", "epsilon",
        "softmax_scores", "batch_average",
    }  # fmt: skip
    older = {k: v for k, v in config.to_dict().items() if k not in added}
    assert config_from_dict(older) == config
