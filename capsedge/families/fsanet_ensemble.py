"""Ensembles of FSA-Nets: the mean of the angles that several of them estimate, as the authors' demos show."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from capsedge.errors import UsageError
from capsedge.families import fsanet, fsanet_keras
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.families.shapes import Patterns, Shapes, fit
from capsedge.formats.stored import Floats
from capsedge.models.config import FSANetConfig, ModelConfig

T = TypeVar("T")
_MOST = 16  # members
_MEMBER = re.compile(r"(\d+)/(.+)")
# What a network without mapping does not have.
_OF_MAPPING = ("primary_types", "mixtures")


def _names(member: Family, keys: Iterable[str]) -> Mapping[str, str]:
    """``2/conv.weight`` for the tensor ``conv.weight`` of the third member, whatever stands before it."""
    groups: dict[str, dict[str, str]] = {}
    for key in keys:
        first, mark, rest = re.fullmatch(r"([^./]*)([./]?)(.*)", key).groups()  # type: ignore[union-attr]
        groups.setdefault(first if mark else "", {})[rest if mark else first] = key
    named: dict[str, str] = {}
    for k, group in enumerate(groups.values()):
        named |= {group[rest]: f"{k}/{name}" for rest, name in member.names(group).items()}
    return named


def _patterns(members: tuple[Family, ...], shapes: Shapes) -> Patterns:
    """The patterns of every member, which has letters of its own."""
    found: dict[str, str] = {}
    groups = _groups(shapes)
    if not 2 <= len(groups) <= _MOST:
        return {"the tensors of several networks": ""}
    for k, own in groups.items():
        for key, pattern in _nearest(members, own).items():
            letters = (w if w.isdigit() else f"{w}.{k}" for w in pattern.split())
            found[f"{k}/{key}"] = " ".join(letters)
    return found


def _nearest(members: tuple[Family, ...], shapes: Shapes) -> Patterns:
    """Patterns of the kind of network that a member is, or is nearest to."""
    kinds = []
    for member in members:
        assert not callable(member.keys)
        there = {
            k: p for group in member.optional if group.keys() & shapes for k, p in group.items()
        }
        kinds.append({**member.keys, **there})
    fits = [fit(shapes, kind) for kind in kinds]
    wrong = [len(f.missing) + len(f.wrong) + len(f.unknown) for f in fits]
    return kinds[wrong.index(min(wrong))]


def _groups(named: Mapping[str, T]) -> dict[int, dict[str, T]]:
    """What belongs to each member."""
    found: dict[int, dict[str, T]] = {}
    for name, value in named.items():
        if match := _MEMBER.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return found


def configure(
    family: Family, sizes: Sizes, answers: Answers, notes: list[str], member: Family
) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing, or the networks differ in more than their scoring.
    """
    own: dict[int, dict[str, int]] = {}
    for word, size in sizes.items():
        letter, _, k = word.rpartition(".")
        own.setdefault(int(k), {})[letter] = size
    configs = [
        member.configure(family, own[k], answers, notes if k == 0 else []) for k in sorted(own)
    ]
    assert all(isinstance(c, FSANetConfig) for c in configs)
    mapped = [c for c in configs if c.scorings != ("none",)]  # type: ignore[attr-defined]
    first = (mapped or configs)[0]
    scorings = tuple(s for c in configs for s in c.scorings)  # type: ignore[attr-defined]
    joined = first.replace(scorings=scorings)
    for config in configs:
        free = _OF_MAPPING if config not in mapped else ()
        alike = config.replace(scorings=scorings, **{n: getattr(first, n) for n in free})
        for field in dataclasses.fields(joined):
            if getattr(alike, field.name) != getattr(joined, field.name):
                raise UsageError(
                    "The networks do not make an ensemble.",
                    f"They differ in {field.name}: {getattr(joined, field.name)} and "
                    f"{getattr(alike, field.name)}.",
                    "Import each of them alone.",
                )
    notes.append(f"the mean of {len(configs)} networks: {', '.join(scorings)}")
    return joined


def convert(found: Mapping[str, Floats], config: ModelConfig, member: Family) -> Tensors:
    """The package's tensors: those of each member, as a part of its own."""
    assert isinstance(config, FSANetConfig)
    made: Tensors = {}
    for k, own in sorted(_groups(found).items()):
        alone = config.replace(scorings=(config.scorings[k],))
        tensors = member.convert(own, alone)
        made |= {f"parts.{k}.{name.removeprefix('parts.0.')}": t for name, t in tensors.items()}
    return made


def _ensemble(name: str, *members: Family) -> Family:
    first = members[0]

    def bound(function: Callable[..., object]) -> Callable[..., object]:
        return lambda *given: function(*given, first)

    return dataclasses.replace(
        first,
        name=name,
        dialect=f"the mean of several networks of the family {' or '.join(m.name for m in members)}",
        keys=lambda shapes: _patterns(members, shapes),
        optional=(),
        renames=lambda keys: _names(first, keys),
        counted="",
        configure=bound(configure),  # type: ignore[arg-type]
        convert=bound(convert),  # type: ignore[arg-type]
    )


PYTORCH = _ensemble("fsanet-ensemble", fsanet.FAMILY)
KERAS = _ensemble("fsanet-keras-ensemble", fsanet_keras.FAMILY, fsanet_keras.WITHOUT_MAPPING)
