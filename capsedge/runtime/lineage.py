"""The checkpoint that a pruned one was made from, as ``capsedge prune`` writes it into its metadata.

A claim of the file until pruning is done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.runtime.files import limits
from capsedge.runtime.files.checkpoint_metadata import field_of
from capsedge.runtime.origin import CLAIMED

PRUNING_KEY = "capsedge.pruning"  # of a checkpoint's metadata


@dataclass(frozen=True)
class Pruned:
    """Where a pruned checkpoint comes from.

    Attributes:
        parent, parent_sha256: the file that was pruned.
        criterion: ``exact``, ``taylor`` or ``look-ahead``.
        units: how many of how many units stay, such as ``40 of 256``, by group.
        multiply_adds: of the parent and of this network, per image.
        grandparent: what the parent says of itself, if it was pruned too.
    """

    parent: str
    parent_sha256: str
    criterion: str
    units: Mapping[str, str]
    multiply_adds: tuple[int, int]
    grandparent: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        older = self.grandparent or {}
        texts = (self.parent, self.parent_sha256, self.criterion, *self.units, *self.units.values())
        if max(len(self.units), len(older)) > limits.LAYERS:
            raise ValueError(f"pruning names over {limits.LAYERS} groups")
        if any(len(t) > limits.ORIGIN_CHARACTERS for t in (*texts, *older, *older.values())):
            raise ValueError(f"a text of it has over {limits.ORIGIN_CHARACTERS} characters")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """Lines for a person."""
        before, after = self.multiply_adds
        return [
            ("pruned", f"{CLAIMED}:"),
            ("pruned from", f"{self.parent}, sha256 {self.parent_sha256}"),
            ("criterion", self.criterion),
            ("multiply-adds", f"{after:,} of {before:,}"),
            *((f"kept {name}", kept) for name, kept in self.units.items()),
        ]

    @property
    def claim(self) -> dict[str, str]:
        """In short, for a link of a certificate, and for the metadata of what is made from this file."""
        return {
            "parent": self.parent,
            "sha256": self.parent_sha256,
            "criterion": self.criterion,
            "units": ", ".join(f"{name}: {kept}" for name, kept in self.units.items()),
        }


def pruned_of(path: Path | str) -> Pruned | None:
    """What a checkpoint was pruned from; None if it was not, or is no safetensors file.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    return field_of(Pruned, path, PRUNING_KEY, "what it was pruned from", "Prune it again.")
