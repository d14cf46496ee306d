"""Removing units: a smaller configuration, and the weights that remain."""

from __future__ import annotations

from capsedge.models import CapsuleModel, build
from capsedge.pruning.families import groups
from capsedge.pruning.units import Group, Kept


def keep_units(model: CapsuleModel, kept: Kept) -> CapsuleModel:
    """A new model with these units alone, in evaluation mode.

    Args:
        kept: by the names of `families.groups`; groups that are not named stay whole.

    Raises:
        KeyError: there is no such group.
    """
    names = {group.name for group in groups(model)}
    for name, keep in kept.items():
        if name not in names:
            raise KeyError(name)
        # Where a group stands depends on those before it: each is found anew.
        group = next(g for g in groups(model) if g.name == name)
        if len(keep) < group.units:
            model = _kept(model, group, keep)
    return model


def _kept(model: CapsuleModel, group: Group, keep: tuple[int, ...]) -> CapsuleModel:
    state = dict(model.state_dict())
    for each in group.tensors:
        state[each.tensor] = each.kept(state[each.tensor], group.units, keep)
    smaller = build(group.shrink(model.config, keep)).to(next(model.parameters()).dtype)
    smaller.load_state_dict(state)
    smaller.typical_input = model.typical_input
    return smaller.eval()
