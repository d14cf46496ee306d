"""Identify a file's family from its keys, shapes and stored configuration, never by guessing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.importers.families import FAMILIES
from capsedge.importers.family import Family, MissingChoice, Weights
from capsedge.importers.key_patterns import Fit

LISTED = 40  # tensors listed of an unknown file
NEAREST = 3  # nearest families listed
DIFFERING = 4  # differences listed of each


class UnknownNetwork(UnsupportedModelError):
    """A file that belongs to no known family.

    Attributes:
        details: its tensors, the nearest families and the differences, one per line.
    """

    def __init__(self, what: str, why: str, fix: str, details: Sequence[str]) -> None:
        super().__init__(what, why, fix)
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join((self.what, *self.details, self.why, self.fix))


@dataclass(frozen=True)
class Identified:
    """A family and how well the file fits it."""

    family: Family
    fit: Fit

    @property
    def in_words(self) -> str:
        """How the family was identified."""
        first = [key for key in self.fit.matched if not key.endswith("bias")][-1:]
        sizes = ", ".join(f"{letter}={n}" for letter, n in self.fit.sizes.items())
        return f"{len(self.fit.matched)} keys ({', '.join(first)} ...) and their shapes ({sizes})"


def identify(weights: Weights, family_name: str | None = None) -> Identified:
    """The family of a file, or the named one."""
    whole = fitting(weights, family_name)
    if len(whole) > 1:
        names = " or ".join(r.family.name for r in whole)
        dialects = "; ".join(f"{r.family.name}: {r.family.dialect}" for r in whole)
        choice = f"--family {'|'.join(r.family.name for r in whole)}"
        raise MissingChoice(
            f"The file may be of the family {names}.",
            f"Keys and shapes are the same, but the functions differ: {dialects}.",
            choice,
            "family=",
            {},
            f"Say which with {choice} (family= in Python), or let --data FOLDER decide.",
        )
    return whole[0]


def readable(weights: Weights, family_name: str | None = None) -> Weights:
    """The first way to read a file in which it fits a family; the file as it is if there is none."""
    families = FAMILIES if family_name is None else [family_of(family_name)]
    readings = (replace(weights, readings=()), *weights.readings)
    return next((r for r in readings if any(f.fit(r).whole for f in families)), readings[0])


def fitting(weights: Weights, family_name: str | None = None) -> list[Identified]:
    """All families that a file fits, at least one; see `identify`."""
    fits = [Identified(f, f.fit(weights)) for f in FAMILIES]
    whole = [r for r in fits if r.fit.whole] if family_name is None else [_named(fits, family_name)]
    if not whole:
        raise _unknown(weights, fits)
    for reading in whole:
        _check_lambdas(weights, reading.family)
    return whole


def others(weights: Weights, family: Family) -> list[Family]:
    """Other families with the same keys and shapes."""
    return [f for f in FAMILIES if f is not family and f.fit(weights).whole]


def family_of(name: str) -> Family:
    """The family with this name. Raises UsageError if there is none."""
    known = {f.name: f for f in FAMILIES}
    if name not in known:
        close = difflib.get_close_matches(name, known, 3, 0.4)
        raise UsageError(
            f"Unknown family '{name}'.",
            f"Did you mean {' or '.join(close)}?" if close else "",
            "Run `capsedge import --list` to see all families.",
        )
    return known[name]


def _named(fits: list[Identified], family_name: str) -> Identified:
    family = family_of(family_name)
    reading = next(r for r in fits if r.family is family)
    if not reading.fit.whole:
        raise UsageError(
            f"The file is not of the family {family_name}.",
            f"{'; '.join(_differences(reading.fit))}.",
            "Leave out --family to see which families fit, or rename its keys with --map "
            "(docs/how-to/import.md).",
        )
    return reading


def _check_lambdas(weights: Weights, family: Family) -> None:
    import re

    strange = [n for n in weights.lambdas if not re.fullmatch(family.lambdas, n)]
    if strange:
        raise UnsupportedModelError(
            f"The network has a Lambda layer, '{strange[0]}'.",
            f"A Lambda layer is code in the file. It is not run, and {family.name} does not say what it "
            "computes.",
            "Write the network in PyTorch and export it: capsedge export --module "
            "(docs/how-to/your-model.md).",
        )


def _differences(fit: Fit) -> list[str]:
    differences = [f"{key} is missing" for key in fit.missing]
    differences += fit.wrong + [f"{key} is not known" for key in fit.unknown]
    left = len(differences) - DIFFERING
    return differences[:DIFFERING] + ([f"{left} more differences"] if left > 0 else [])


def _unknown(weights: Weights, fits: list[Identified]) -> UnknownNetwork:
    shapes = weights.shapes
    width = min(60, max(map(len, shapes)))
    details = [
        f"{name:<{width}}  {' x '.join(map(str, s))}" for name, s in list(shapes.items())[:LISTED]
    ]
    if len(shapes) > LISTED:
        details.append(f"and {len(shapes) - LISTED:,} more tensors")
    if weights.lambdas:
        details.append(f"Lambda layers, which are not run: {', '.join(weights.lambdas[:LISTED])}")
    unstated = [
        f for f in (r.family for r in fits) if weights.config is None and f.has_signature(shapes)
    ]
    if unstated:
        return _without_configuration(unstated[0], details)
    near = sorted(fits, key=lambda r: (-_nearness(r.fit), r.family.name))[:NEAREST]
    for one in near:
        if _nearness(one.fit) > 0:
            details.append(f"nearest: {one.family.name}: {'; '.join(_differences(one.fit))}")
    return UnknownNetwork(
        "The file does not belong to any known family.",
        f"It has {len(shapes):,} tensors ({weights.format}); capsedge import --list shows the families.",
        "If only the names differ, rename them with --map keys.toml (docs/how-to/import.md). Otherwise "
        "export the PyTorch module with its weights: capsedge export --module file.py:Name --weights FILE "
        "(docs/how-to/your-model.md)",
        details,
    )


def _without_configuration(family: Family, details: list[str]) -> UnknownNetwork:
    """The error for a file with weights only, of a family that needs the configuration in the file."""
    return UnknownNetwork(
        f"The file looks like the family {family.name}, but has no configuration.",
        "It was written by save_weights(). Its tensors do not reveal strides, padding, pooling, "
        "activations, or the number of capsules in a layer.",
        "Build the network with its author's code, and save the whole model with Keras: "
        "model.load_weights('FILE'); model.save('whole.h5'). Then import whole.h5.",
        details,
    )


def _nearness(fit: Fit) -> float:
    """Share of the family's keys that the file has."""
    named = len(fit.matched) + len(fit.wrong)
    return named / max(1, named + len(fit.missing) + len(fit.unknown))
