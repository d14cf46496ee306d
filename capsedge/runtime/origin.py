"""Record where weights come from: another network that was imported, or a larger one that was pruned.

The file claims this; only importing or pruning again confirms it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsedge.runtime.files.safetensors import field_of
from capsedge.spec import limits

# --- Imported weights, whose origin ``export`` passes on ---

ORIGIN_KEY = "capsedge.origin"  # key in the metadata of a checkpoint or an ONNX file
NOT_COMPARED = "not compared with its author's code"
SUMMARY_FIELDS = "claimed by the file"


@dataclass(frozen=True)
class Origin:
    """The origin of imported weights.

    Attributes:
        family, source, licence, dialect, differences: of the family (`capsedge.importers.families`).
        file, file_sha256: the file that was imported.
        notes: what was assumed.
        compared: what a comparison with the author's code found, by name; None if there was none.
    """

    family: str
    source: str
    licence: str
    dialect: str
    differences: tuple[str, ...]
    file: str
    file_sha256: str
    notes: tuple[str, ...] = ()
    compared: Mapping[str, str | int | float | bool | None] | None = None

    def __post_init__(self) -> None:
        for name in ("differences", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        compared = self.compared or {}
        if max(map(len, (self.differences, self.notes, compared))) > limits.ORIGIN_ENTRIES:
            raise ValueError(f"the origin has over {limits.ORIGIN_ENTRIES} entries of one kind")
        single = (self.family, self.source, self.licence, self.dialect, self.file, self.file_sha256)
        values = (value for value in compared.values() if isinstance(value, str))
        texts = (*single, *self.differences, *self.notes, *compared, *values)
        if any(len(text) > limits.ORIGIN_CHARACTERS for text in texts):
            raise ValueError(f"a text of the origin has over {limits.ORIGIN_CHARACTERS} characters")

    def facts(self) -> list[tuple[str, str]]:
        """Lines of text for the user."""
        return [
            ("origin", f"{SUMMARY_FIELDS}:"),
            ("imported from", f"{self.file}, sha256 {self.file_sha256}"),
            ("family", f"{self.family}: {self.dialect}"),
            ("source of the code", self.source),
            ("licence of the code", self.licence_words),
            *(("not as in the paper", text) for text in self.differences),
            *(("note", text) for text in self.notes),
            ("author's code", self.comparison),
        ]

    def changed(self, how: str) -> Origin:
        """The origin of the same weights in a different function, for which the comparison is no longer
        valid.
        """
        return replace(self, notes=(*self.notes, how), compared=None)

    @property
    def licence_words(self) -> str:
        """The licence, or that there is none."""
        return self.licence or "the repository states none"

    @property
    def summary(self) -> dict[str, str]:
        """The origin in short, for a link of a certificate."""
        return {
            "family": self.family,
            "source": self.source,
            "licence": self.licence_words,
            "comparison": self.comparison,
        }

    @property
    def comparison(self) -> str:
        """The comparison with the author's code in words."""
        if self.compared is None:
            return NOT_COMPARED
        c = self.compared
        fixed = f", fixed there: {c['fixed']}" if c.get("fixed") else ""
        return (
            f"compared with {c.get('code')} on {c.get('inputs')} inputs: largest difference "
            f"{c.get('largest_difference')}, {c.get('flips')} flips{fixed}"
        )


def origin_of(path: Path | str) -> Origin | None:
    """The origin of a checkpoint; None if it was not imported, or is not a safetensors file.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    return field_of(Origin, path, ORIGIN_KEY, "where its weights come from", "Import it again.")


# --- Pruned checkpoints ---

PRUNING_KEY = "capsedge.pruning"  # key in a checkpoint's metadata


@dataclass(frozen=True)
class Pruned:
    """Where a pruned checkpoint comes from.

    Attributes:
        parent, parent_sha256: the file that was pruned.
        criterion: ``exact``, ``taylor`` or ``look-ahead``.
        units: how many of how many units stay, such as ``40 of 256``, by group.
        multiply_adds: of the parent and of this network, per image.
        grandparent: the parent's own origin, if it was pruned too.
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
        """Lines of text for the user."""
        before, after = self.multiply_adds
        return [
            ("pruned", f"{SUMMARY_FIELDS}:"),
            ("pruned from", f"{self.parent}, sha256 {self.parent_sha256}"),
            ("criterion", self.criterion),
            ("multiply-adds", f"{after:,} of {before:,}"),
            *((f"kept {name}", kept) for name, kept in self.units.items()),
        ]

    @property
    def summary(self) -> dict[str, str]:
        """In short, for a link of a certificate, and for the metadata of what is made from this file."""
        return {
            "parent": self.parent,
            "sha256": self.parent_sha256,
            "criterion": self.criterion,
            "units": ", ".join(f"{name}: {kept}" for name, kept in self.units.items()),
        }


def pruned_of(path: Path | str) -> Pruned | None:
    """The checkpoint from which a checkpoint was pruned; None if it was not pruned, or is not a safetensors
    file.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    return field_of(Pruned, path, PRUNING_KEY, "what it was pruned from", "Prune it again.")
