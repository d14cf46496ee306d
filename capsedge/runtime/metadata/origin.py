"""Record where weights come from: an imported network, a larger one that was pruned, or a part of a data set.

The file claims this; only importing, pruning or training again confirms it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

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
    """The origin of a checkpoint; None if it was not imported, or is not a safetensors file."""
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
    """The checkpoint that this one was pruned from; None if it was not, or is not safetensors."""
    return field_of(Pruned, path, PRUNING_KEY, "what it was pruned from", "Prune it again.")


# --- The images of a data set that a network was trained on, as a rule of a few bytes ---
# It depends on the pixels alone: it stays right when images are added, moved, renamed or reordered.

TRAINING_SPLIT_KEY = "capsedge.training_split"  # in the metadata of a checkpoint or an ONNX file
SAMPLE = 64  # training images by which the data set is recognized
_KEY, _MARK = 8, 16  # hexadecimal digits of a threshold, and of an image of the sample


@dataclass(frozen=True)
class TrainingSplit:
    """The rule by which images were held out.

    The key of an image is the first 32 bits of the SHA-256 of the seed (8 bytes, little-endian) and of the
    SHA-256 of its pixels at the model's size. It is a test image if its key is below the test threshold of
    its class, otherwise a validation image if it is below that threshold; all others were trained on.

    Attributes:
        seed: the seed of the drawing.
        test, validation: one threshold per class, of 8 hexadecimal digits.
        sample: the first 16 hexadecimal digits of the SHA-256 of up to 64 training images, joined. A data set
            with none of them is another one. With fewer than 64, they are all that it was trained on.
    """

    seed: int
    test: str
    validation: str
    sample: str

    def __post_init__(self) -> None:
        for text, digits, most in (
            (self.test, _KEY, limits.WIDTH),
            (self.validation, _KEY, limits.WIDTH),
            (self.sample, _MARK, SAMPLE),
        ):
            if len(text) % digits or len(text) > digits * most or re.search("[^0-9a-f]", text):
                raise ValueError("the training split is not stated in hexadecimal digits")
        if len(self.test) != len(self.validation) or not 0 <= self.seed < 2**63:
            raise ValueError("the thresholds of the training split contradict each other")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """How much was held out, in words: ``9 % to 15 % of each class for testing, 10 % for validation``."""
        parts: list[str] = []
        before = [0] * (len(self.test) // _KEY)
        for purpose, text in (("testing", self.test), ("validation", self.validation)):
            ends = [int(text[at : at + _KEY], 16) for at in range(0, len(text), _KEY)]
            shares = [100 * max(0, e - b) / 2**32 for e, b in zip(ends, before, strict=True)]
            drawn = [share for share in shares if share > 0]  # of classes that have images
            low, high = min(drawn, default=0), max(drawn, default=0)
            share = f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} % to {high:.0f} %"
            if high > 0:  # data that state a split have nothing drawn for it
                parts.append(f"{share} of each class for {purpose}")
            before = ends
        return f"{', '.join(parts) or 'nothing drawn'} (seed {self.seed})"

    @property
    def complete(self) -> bool:
        """Whether the sample holds every image that was trained on."""
        return len(self.sample) < SAMPLE * _MARK

    def known(self, checksums: Iterable[bytes]) -> int:
        """How many of these images are in the sample, and so were trained on."""
        return sum(sample_of(checksum) in self._sampled for checksum in checksums)

    @cached_property
    def _sampled(self) -> frozenset[str]:
        return frozenset(self.sample[at : at + _MARK] for at in range(0, len(self.sample), _MARK))

    def applying(self, checksums: Sequence[bytes], labels: Sequence[int]) -> TrainingSplit | None:
        """The rule, if these are images of the data set that was divided, with the same labels."""
        splits = [
            self.part(checksum, label)
            for checksum, label in zip(checksums, labels, strict=True)
            if sample_of(checksum) in self._sampled
        ]
        # Other labels have other thresholds: images of the sample, which are next to them, show it.
        return self if splits and set(splits) == {"train"} else None

    def part(self, checksum: bytes, label: int) -> str:
        """The split of an image: ``train``, ``test`` or ``validation``."""
        at = label * _KEY
        key = key_of(checksum, self.seed)
        for name, text in (("test", self.test), ("validation", self.validation)):
            if key < int(text[at : at + _KEY] or "0", 16):
                return name
        return "train"


@dataclass(frozen=True)
class JointSplit:
    """The rules of several networks: what one of them was trained on is a training image."""

    rules: tuple[TrainingSplit, ...]

    @property
    def complete(self) -> bool:
        """Whether the samples hold every image that was trained on."""
        return all(rule.complete for rule in self.rules)

    def known(self, checksums: Iterable[bytes]) -> int:
        """How many of these images at least one network was trained on, as far as the samples tell."""
        return sum(any(rule.known([each]) for rule in self.rules) for each in checksums)

    def applying(self, checksums: Sequence[bytes], labels: Sequence[int]) -> AnySplit | None:
        """The rules of the networks whose data set this is; None if one has other labels."""
        known = [rule for rule in self.rules if rule.known(checksums)]
        rules = [rule.applying(checksums, labels) for rule in known]
        return None if None in rules else joint_training_split(rules)

    def part(self, checksum: bytes, label: int) -> str:
        """The split of an image; a test image is one of all networks."""
        parts = {rule.part(checksum, label) for rule in self.rules}
        if "train" in parts:
            return "train"
        return "test" if parts == {"test"} else "validation"


AnySplit: TypeAlias = "TrainingSplit | JointSplit"


def joint_training_split(rules: Iterable[TrainingSplit | None]) -> AnySplit | None:
    """The rule for images that none of several networks was trained on; None if none states a rule."""
    distinct = tuple(dict.fromkeys(rule for rule in rules if rule is not None))
    return distinct[0] if len(distinct) == 1 else JointSplit(distinct) if distinct else None


def key_of(checksum: bytes, seed: int) -> int:
    """The key of an image, from its SHA-256."""
    return int.from_bytes(hashlib.sha256(seed.to_bytes(8, "little") + checksum).digest()[:4], "big")


def sample_of(checksum: bytes) -> str:
    """What a sample holds of an image, from its SHA-256."""
    return checksum.hex()[:_MARK]


def split_thresholds(values: Sequence[int]) -> str:
    """The thresholds of all classes, each above the largest key that it holds out; 0 for none."""
    return "".join(f"{min(value, 2**32 - 1):08x}" for value in values)


def training_split_of(path: Path | str) -> TrainingSplit | None:
    """The training split of a checkpoint; None if it states none, or is not a safetensors file."""
    return field_of(
        TrainingSplit,
        path,
        TRAINING_SPLIT_KEY,
        "which images were held out from its training",
        "Copy it again, or train again.",
        limits.TRAINING_SPLIT_BYTES,
    )
