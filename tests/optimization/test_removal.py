"""Removing units: the smaller network is the larger one without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.configs import CapsuleConv, Conv, ModelConfig, ResNet
from capsedge.optimization.prune_criteria import choose, look_ahead, multiply_adds
from capsedge.optimization.prune_groups import groups, keep_units
from capsedge.optimization.prune_units import Group

_SMALL = replace(get_config("digits-dynamic").preprocessing, height=14, width=14)
_STEM = (Conv(8, 3, 2, batch_norm=True), Conv(16, 3, bias=False, batch_norm=True, norm_last=True))
DYNAMIC = get_config("digits-dynamic").replace(
    preprocessing=_SMALL, stem=_STEM, primary_types=4, primary_kernel=3, primary_stride=1,
    decoder=(16, 24), learned_priors=True,
)  # fmt: skip
EM = get_config("digits-em").replace(
    preprocessing=_SMALL, stem=_STEM, primary_types=4, capsule_layers=(CapsuleConv(5, 2),),
    iterations=2,
)  # fmt: skip
ATTENTION = get_config("digits-attention").replace(
    preprocessing=_SMALL, stem=_STEM, primary_types=4, capsule_layers=(CapsuleConv(5, 2),),
    dense_layers=(6,),
)  # fmt: skip
CONFIGS: dict[str, ModelConfig] = {
    "dynamic": DYNAMIC,
    "pixels": DYNAMIC.replace(primary_grouping="pixels"),
    "convolutional": DYNAMIC.replace(capsule_layers=(CapsuleConv(3, 2),), learned_priors=False),
    "blocks": DYNAMIC.replace(
        stem=(Conv(8, 3, 2, squeeze=4), Conv(16, 3, instance_norm=True, attention=4))
    ),
    "residual": DYNAMIC.replace(stem=ResNet(((8, 1, 1), (16, 2, 2)))),
    "em": EM,
    "attention": ATTENTION,
}


def network(config: ModelConfig, seed: int = 0) -> CapsuleModel:
    """Random weights, statistics of normalization included."""
    torch.manual_seed(seed)
    model = build(config).double().eval()
    for name, value in model.state_dict().items():
        if "running_" in name:
            value.copy_(torch.rand_like(value) + 0.5)
    return model


def images(config: ModelConfig, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, *config.preprocessing.shape, generator=generator).double()


def group(model: CapsuleModel, name: str) -> Group:
    return next(g for g in groups(model) if g.name == name)


def silenced(model: CapsuleModel, name: str, keep: tuple[int, ...]) -> None:
    """Make the readers of all other units ignore them."""
    found = group(model, name)
    gone = [k for k in range(found.units) if k not in keep]
    state = model.state_dict()
    for each in found.read:
        value = state[each.tensor]
        index = torch.arange(value.shape[each.dim]).reshape(each.outer, found.units, each.inner)
        value.index_fill_(each.dim, index[:, gone].reshape(-1), 0.0)


@pytest.mark.sample(1)
@settings(deadline=None, max_examples=15)
@given(st.data())
@pytest.mark.parametrize("kind", ["dynamic", "pixels", "convolutional", "attention"])
def test_units_that_nothing_reads_leave_the_outputs_alone(kind: str, data: st.DataObject) -> None:
    """Stem channels, primary capsules, their positions, decoder units: removed is the same as not read."""
    model = network(CONFIGS[kind])
    names = [g.name for g in groups(model) if g.name.startswith(("stem", "primary", "decoder"))]
    name = data.draw(st.sampled_from(names))
    units = group(model, name).units
    chosen = data.draw(st.sets(st.integers(0, units - 1), min_size=1))
    keep = tuple(sorted(chosen))
    silenced(model, name, keep)
    x = images(model.config)
    with torch.no_grad():
        wanted, smaller = model(x), keep_units(model, {name: keep})
        found = smaller(x)
        for a, b in ((wanted.scores, found.scores), (wanted.poses, found.poses)):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        if model.decoder is not None:
            torch.testing.assert_close(
                model.reconstruct(wanted.poses), smaller.reconstruct(wanted.poses)
            )


def test_a_child_without_activation_leaves_em_routing_alone() -> None:
    model = network(EM)
    keep = (0, 2)
    with torch.no_grad():
        model.get_parameter("primary_activation.conv.bias")[[1, 3]] = -1e4
        smaller = keep_units(model, {"primary types": keep})
        x = images(EM)
        torch.testing.assert_close(model(x).scores, smaller(x).scores, rtol=1e-7, atol=1e-9)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_group_can_shrink_alone_and_all_together(kind: str) -> None:
    model = network(CONFIGS[kind])
    kept = {g.name: tuple(range(0, g.units, 2)) for g in groups(model)}
    assert len(kept) >= 3
    before = multiply_adds(model.config)
    for name, keep in kept.items():
        smaller = keep_units(model, {name: keep})
        assert group(smaller, name).units == len(keep)
        assert multiply_adds(smaller.config) < before or name.startswith("decoder")
    smaller = keep_units(model, kept)
    assert [g.units for g in groups(smaller)] == [len(k) for k in kept.values()]
    assert torch.isfinite(smaller(images(model.config)).scores).all()


def test_the_weights_that_stay_are_those_of_the_units() -> None:
    """By explicit indices, where a removed parent changes what the others compute."""
    model = network(ATTENTION)
    weight = model.get_parameter("capsules.0.weight"), model.get_parameter("capsules.1.weight")
    smaller = keep_units(model, {"capsules.0.types": (1, 4), "primary types": (0, 3)})
    found = smaller.get_parameter("capsules.0.weight"), smaller.get_parameter("capsules.1.weight")
    assert torch.equal(found[0], weight[0][:, :, [0, 3]][:, :, :, [1, 4]])
    assert torch.equal(found[1], weight[1][:, :, [1, 4]])


def test_positions_are_of_the_first_network() -> None:
    """Pruned twice, positions still name places of the whole map."""
    model = network(DYNAMIC)
    once = keep_units(model, {"primary positions": (0, 1, 3)})
    twice = keep_units(once, {"primary positions": (0, 2)})
    assert getattr(twice.config, "primary_positions") == (0, 3)  # noqa: B009
    straight = keep_units(model, {"primary positions": (0, 3)})
    x = images(DYNAMIC)
    assert torch.equal(twice(x).scores, straight(x).scores)


def test_a_grouped_convolution_keeps_its_channels() -> None:
    stem = (Conv(8, 3, 2), Conv(8, 3, 1, 1, groups=8), Conv(16, 3))
    names = [g.name for g in groups(network(DYNAMIC.replace(stem=stem)))]
    assert "stem.0 channels" not in names
    assert "stem.1 channels" not in names
    assert "stem.2 channels" in names


def test_an_unknown_family_and_impossible_positions_are_refused() -> None:
    from capsedge.models.configs import EfficientCapsNetConfig

    config = EfficientCapsNetConfig(
        class_names=("a", "b"), preprocessing=_SMALL, stem=(Conv(16, 3),), primary_types=2,
        primary_kernel=12,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="efficient"):
        groups(build(config))
    for wrong in ((3, 1), (1, 1), (0, 10**6), (-1,)):
        with pytest.raises(UsageError):
            build(DYNAMIC.replace(primary_positions=wrong))
    with pytest.raises(UsageError, match="over a map"):
        CONFIGS["convolutional"].replace(primary_positions=(1,))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        pytest.param(kind, factor, marks=[pytest.mark.thorough] if (number + half) % 2 else [])
        for number, kind in enumerate(CONFIGS)
        for half, factor in enumerate((1.3, 2.0))
    ],
)
def test_the_choice_meets_its_target_with_the_least_important_units(
    kind: str, factor: float
) -> None:
    model = network(CONFIGS[kind])
    found = groups(model)
    importance = look_ahead(model, found)
    kept = choose(model.config, found, importance, multiply_adds(model.config) / factor)
    smaller = keep_units(model, kept)
    assert multiply_adds(smaller.config) <= multiply_adds(model.config) / factor
    for name, keep in kept.items():
        scores = importance[name]
        gone = [k for k in range(len(scores)) if k not in keep]
        assert scores[gone].max() <= scores[list(keep)].min()
        assert len(keep) >= len(scores) // 4


def test_multiply_adds_of_the_papers_network() -> None:
    """20x20 positions of 9x9x256; 6x6 of 9x9x256x256; 1,152 children, 10 parents, 8 to 16 elements."""
    votes = 1152 * 10 * 16
    expected = 400 * 81 * 256 + 36 * 81 * 256 * 256 + votes * 8 + 2 * 3 * votes
    assert multiply_adds(get_config("capsnet-mnist")) == expected
