"""Exact removal: what goes has no effect, and what has an effect stays."""

from __future__ import annotations

import pytest
import torch

from capsedge.optimization.prune_exact import remove_exactly
from tests.optimization.test_removal import ATTENTION, CONFIGS, DYNAMIC, EM, network


@pytest.mark.parametrize("kind", CONFIGS)
def test_random_weights_stay_whole(kind: str) -> None:
    model = network(CONFIGS[kind]).float()
    smaller, kept = remove_exactly(model)
    assert smaller is model
    assert kept == {}


def test_everything_without_an_effect_goes_at_once() -> None:
    """A channel that normalization makes zero, one that nothing reads, a copy, a capsule without votes, a
    position without votes, a decoder unit that ReLU ends."""
    model = network(DYNAMIC).float()
    state = model.state_dict()
    names = [type(m).__name__ for m in model.stem]
    assert names == ["PaddedConv2d", "BatchNorm2d", "ReLU", "PaddedConv2d", "ReLU", "BatchNorm2d"]
    state["stem.1.weight"][2] = 0  # gamma
    state["stem.1.bias"][2] = -0.5
    state["stem.3.weight"][:, 5] = 0  # nothing reads channel 5
    for name in ("stem.3.weight", "stem.5.weight", "stem.5.bias"):
        state[name][9] = state[name][4]
    state["stem.5.running_mean"][9] = state["stem.5.running_mean"][4]
    state["stem.5.running_var"][9] = state["stem.5.running_var"][4]
    dim = DYNAMIC.primary_dim
    state["primary.conv.weight"][dim : 2 * dim] = 0
    state["primary.conv.bias"][dim : 2 * dim] = 0
    state["classes.weight"][2 * 4 : 3 * 4] = 0  # position 2, all four types
    state["classes.log_prior"][2 * 4 : 3 * 4] = 0.4
    state["decoder.0.weight"][3] = 0
    state["decoder.0.bias"][3] = -1
    smaller, kept = remove_exactly(model)
    gone = {
        name: sorted(set(range(_units(model, name))) - set(keep)) for name, keep in kept.items()
    }
    assert gone == {
        "stem.0 channels": [2, 5],
        "stem.1 channels": [9],
        "primary types": [1],
        "primary positions": [2],
        "decoder.0 units": [3],
    }
    x = torch.rand(4, *DYNAMIC.preprocessing.shape)
    with torch.no_grad():
        wanted, found = model(x), smaller(x)
        torch.testing.assert_close(wanted.poses, found.poses, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            model.reconstruct(wanted.poses), smaller.reconstruct(found.poses), rtol=1e-4, atol=1e-5
        )


def _units(model: object, name: str) -> int:
    from capsedge.models import CapsuleModel
    from capsedge.optimization.prune_groups import groups

    assert isinstance(model, CapsuleModel)
    return next(g.units for g in groups(model) if g.name == name)


def test_what_has_an_effect_stays() -> None:
    """Zero votes count in EM, in a softmax over the children and with a bias of the votes; a constant
    channel above zero is read; a normalization over channels sees every one."""
    em = network(EM).float()
    em.state_dict()["capsules.0.weight"][:, :, 1] = 0
    children = network(DYNAMIC.replace(softmax="children")).float()
    children.state_dict()["classes.weight"][:8] = 0
    biased = network(DYNAMIC.replace(vote_bias=True)).float()
    biased.state_dict()["classes.weight"][:8] = 0
    shifted = network(ATTENTION).float()
    shifted.state_dict()["primary.conv.weight"][:16] = 0  # normalized to its bias
    shifted.state_dict()["norm.bias"][:] = 0.3
    constant = network(DYNAMIC).float()
    constant.state_dict()["stem.1.weight"][2] = 0
    constant.state_dict()["stem.1.bias"][2] = 0.5
    for model in (em, children, biased, shifted, constant):
        assert remove_exactly(model)[0] is model


def test_a_layer_never_gets_empty() -> None:
    model = network(DYNAMIC).float()
    model.state_dict()["stem.3.weight"].zero_()
    smaller, _ = remove_exactly(model)
    assert _units(smaller, "stem.0 channels") == 1
    x = torch.rand(2, *DYNAMIC.preprocessing.shape)
    torch.testing.assert_close(model(x).scores, smaller(x).scores)
