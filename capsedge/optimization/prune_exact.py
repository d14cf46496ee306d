"""Remove units without changing any output: constant zeros, unread units, duplicates."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from capsedge.errors import ParityError
from capsedge.models import CapsuleModel
from capsedge.models.attention_capsules import AttentionCapsules
from capsedge.models.capsnet import CapsNet
from capsedge.models.configs import ResNet
from capsedge.models.layers import PaddedConv2d
from capsedge.models.stems import FractionalMaxPool
from capsedge.optimization.prune_groups import groups, keep_units
from capsedge.optimization.prune_units import Group, Kept, Slice

_TOLERANCE = 1e-9  # tolerance in FP64 for sums in another order
_PROBES = 8  # random images
# Layers between two convolutions that treat each channel separately.
_CHANNELWISE = (nn.BatchNorm2d, nn.ReLU, nn.LeakyReLU, nn.Hardswish, FractionalMaxPool)
State = Mapping[str, Tensor]


def remove_exactly(model: CapsuleModel) -> tuple[CapsuleModel, Kept]:
    """Remove units that no output depends on, and merge duplicates, until nothing is left to remove.

    A capsule is removed if its votes, or of SegCaps its pose, are all zero; a channel or decoder unit, if its
    value is always zero or nothing reads it; an element of SegCaps' poses, if it is always zero. Of channels
    with the same weights, one is kept, and the readers of the others read it.

    Returns:
        The smaller model (the same one if nothing is removed) and the kept units' indices in the original
        model.
    """
    original, total = model, {g.name: tuple(range(g.units)) for g in groups(model)}
    while kept := _removable(model):
        joined = _joined(model)
        model = keep_units(joined, kept)
        total |= {name: tuple(total[name][k] for k in keep) for name, keep in kept.items()}
    if model is not original:
        _prove(original, model)
    return model, {g.name: total[g.name] for g in groups(original) if len(total[g.name]) < g.units}


def _removable(model: CapsuleModel) -> dict[str, tuple[int, ...]]:
    """The units to keep in each group that loses some."""
    state = model.state_dict()
    kept: dict[str, tuple[int, ...]] = {}
    for group in groups(model):
        gone = _silent(model, group, state) | _duplicates(model, group, state)
        if bool(gone.all()):
            gone[0] = False  # a layer cannot be empty
        if bool(gone.any()):
            kept[group.name] = tuple(torch.nonzero(~gone).flatten().tolist())
    # One group at a time, since its removal may change what another reads.
    return dict(list(kept.items())[:1])


def _silent(model: CapsuleModel, group: Group, state: State) -> Tensor:
    """Which units never affect any output, whatever the input ``[units]``."""
    none = torch.zeros(group.units, dtype=torch.bool)
    if group.name.startswith("primary "):
        if not _silent_children(model):
            return none
        silent = _zero(group.read[:1], group.units, state)
        if isinstance(model, CapsNet) and group.written:
            silent |= _zero(group.written, group.units, state)
        return silent
    if group.silent:
        return _zero(group.written, group.units, state)
    modules = _after(model, group)
    if modules is None:
        return none
    return _zero(group.read, group.units, state) | (_constant(group, modules, state) == 0)


def _silent_children(model: CapsuleModel) -> bool:
    """Whether a child whose votes are zero has no effect on the routing."""
    c = model.config
    if isinstance(model, CapsNet):
        plain = model.config.softmax == "parents" and model.config.primary_squash == "pose"
        return plain and not (model.config.vote_bias and not c.capsule_layers)
    return isinstance(model, AttentionCapsules)


def _after(model: CapsuleModel, group: Group) -> list[nn.Module] | None:
    """The layers after a layer of channels or units up to the next one; None if they tie units together."""
    if group.name.startswith("decoder."):
        return [nn.ReLU()]
    if not group.name.startswith("stem.") or isinstance(model.config.stem, ResNet):
        return None
    modules = list(model.stem)
    start = int(group.written[0].tensor.split(".")[1]) + 1
    ends = [k for k in range(start, len(modules)) if isinstance(modules[k], PaddedConv2d)]
    between = modules[start : ends[0] if ends else len(modules)]
    return between if all(isinstance(m, _CHANNELWISE) for m in between) else None


def _zero(slices: tuple[Slice, ...], units: int, state: State) -> Tensor:
    """Which units have only zeros in these tensors ``[units]``."""
    zero = torch.ones(units, dtype=torch.bool)
    for each in slices:
        zero &= (each.by_unit(state[each.tensor], units) == 0).all(1)
    return zero


def _constant(group: Group, modules: list[nn.Module], state: State) -> Tensor:
    """The value of each constant unit; NaN for the others ``[units]``."""
    name = group.written[0].tensor.removesuffix(".weight")
    bias = state.get(f"{name}.bias", torch.zeros(group.units)).double()
    value = bias.where(_zero(group.written[:1], group.units, state), torch.nan)
    for module in modules:
        if isinstance(module, nn.BatchNorm2d):
            value = _normalized(module, value)
        elif not isinstance(module, FractionalMaxPool):
            value = module(value)
    return value


def _normalized(norm: nn.BatchNorm2d, value: Tensor) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale, shift = norm.weight.detach().double(), norm.bias.detach().double()
    deviation = (norm.running_var.double() + norm.eps).sqrt()
    normalized = (value - norm.running_mean.double()) / deviation * scale + shift
    return torch.where(scale == 0, shift, normalized)


def _duplicates(model: CapsuleModel, group: Group, state: State) -> Tensor:
    """Which units compute the same as an earlier one ``[units]``."""
    return _first(model, group, state) < torch.arange(group.units)


def _first(model: CapsuleModel, group: Group, state: State) -> Tensor:
    """The first unit with the same weights as each ``[units]``; itself if units cannot be joined."""
    first = torch.arange(group.units)
    if _after(model, group) is None:
        return first
    values = torch.cat([s.by_unit(state[s.tensor], group.units).double() for s in group.written], 1)
    known: dict[bytes, int] = {}
    for unit, row in enumerate(values.numpy()):
        first[unit] = known.setdefault(row.tobytes(), unit)
    return first


def _joined(model: CapsuleModel) -> CapsuleModel:
    """The model with the readers of duplicates reading the first of them instead."""
    joined = copy.deepcopy(model)
    state = joined.state_dict()
    for group in groups(joined):
        first = _first(joined, group, state)
        if bool((first == torch.arange(group.units)).all()):
            continue
        for each in group.read:
            whole = state[each.tensor].movedim(each.dim, 0)
            summed = torch.zeros_like(whole).index_add_(0, first, whole)
            whole.copy_(summed)
    return joined


@torch.no_grad()
def _prove(original: CapsuleModel, smaller: CapsuleModel) -> None:
    """Compare both in FP64 on random images."""
    generator = torch.Generator().manual_seed(0)
    shape = original.config.preprocessing.shape
    images = torch.rand(_PROBES, *shape, generator=generator, dtype=torch.float64) * 2 - 0.5
    wanted = copy.deepcopy(original).double().eval()(images)
    outputs = copy.deepcopy(smaller).double().eval()(images)
    for name in ("scores", "poses"):
        difference = (getattr(wanted, name) - getattr(outputs, name)).abs().max().item()
        if not difference <= _TOLERANCE * max(1.0, getattr(wanted, name).abs().max().item()):
            raise ParityError(
                f"Removing units that should have no effect changed the {name} by {difference:.3g}.",
                "This is a bug in capsedge.",
                "Please report it with the checkpoint's configuration: capsedge inspect CHECKPOINT.",
            )
