"""The type of a set of images; its division into training, validation and test images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images.inputs import ImageReader
from capsedge.runtime.images.preprocessing import prepare_all
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import (
    SAMPLE,
    AnySplit,
    TrainingSplit,
    key_of,
    sample_of,
    split_thresholds,
)

Floats = NDArray[np.float32]
_PREPARED = 32  # images at once


@dataclass(frozen=True)
class ImageSet:
    """Images with or without labels.

    Attributes:
        source: where they come from.
        images: pixels ``[N, H, W, C]`` uint8, or what a model's first input takes: prepared floats
            ``[N, C, H, W]``, or arrays ``[N, ...]`` of any shape for a file from another tool.
        labels: their classes ``[N]``; None if not known.
        preprocessing: how pixels become a model's input; None if they are prepared, or without a model.
        names: file names of single images, or their paths in a folder of classes; empty for other sources.
        split: the split of a data set: ``train``, ``test`` or ``validation``; empty for a source that is not
            divided.
        whole: whether these are all images of the source.
        others: what the model's other inputs take ``[N, ...]``, by name.
        ignored: what the source has and nothing uses, such as a regression's labels; else empty.
        targets: values to estimate ``[N, K]``; None if not known.
        masks: the class of each pixel of the model's input ``[N, height, width]``, 255 unknown; None if not
            known.
        known: whether a model was trained on all or none of them, in words; empty if nothing tells it.
        total: number of images that the source holds, where ``known`` is stated.
        trained: which of the images are known to have trained the model ``[N]``; None if nothing tells it.
        least: whether others may have trained it too.
    """

    source: str
    images: NDArray[Any]
    labels: NDArray[np.int64] | None = None
    preprocessing: Preprocessing | None = None
    names: tuple[str, ...] = ()
    split: str = ""
    whole: bool = True
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    ignored: str = ""
    targets: NDArray[np.float64] | None = None
    masks: NDArray[np.uint8] | None = None
    known: str = ""
    total: int = 0
    trained: NDArray[np.bool_] | None = None
    least: bool = False

    def __len__(self) -> int:
        return len(self.images)

    @property
    def noun(self) -> str:
        """What messages call its entries: ``images``, or ``rows`` of a table."""
        pixels = self.preprocessing is not None or self.images.dtype == np.uint8
        return "images" if pixels or self.images.ndim == 4 else "rows"

    @property
    def described(self) -> str:
        """Which images these are, for the figures that are measured on them: every verb's wording."""
        count = f"{len(self):,} {self.noun}"
        if self.known:
            part = len(self) < self.total
            which = f"{len(self):,} of {self.total:,} {self.noun}" if part else f"all {count}"
            return f"{self.source}, {which}, {self.known}"
        which = f"{self.split} split, {count}" if self.split else f"{'all ' * self.whole}{count}"
        if fact := self._overlap:
            return f"{self.source}, {which}, {fact}"
        if self.split in ("test", "validation"):
            return f"{self.source}, {which}"
        return f"{self.source}, {which}; cannot tell whether they trained the model"

    @property
    def _overlap(self) -> str:
        """How many of the images trained the model, in words; empty if that is not known."""
        if self.trained is None or (self.least and not self.trained.any()):
            return ""
        count = int(self.trained.sum())
        some = f"{'at least ' * self.least}{count:,}" if count else "none"
        return f"{some} of which trained the model"

    @property
    def classes(self) -> NDArray[np.int64]:
        """The labels, which the set must have.

        Raises:
            UsageError: it has no labels.
        """
        if self.labels is None:
            raise UsageError(
                f"{self.source} has no labels.",
                "",
                "Provide labelled images: one sub-folder per class, or an npz file with 'labels'.",
            )
        return self.labels

    def inputs(self) -> Iterator[Floats]:
        """The images as a model's input ``[C, H, W]``, a few prepared at once; whole numbers as they are."""
        for batch in self.batches(_PREPARED):
            yield from batch

    def batches(self, size: int) -> Iterator[Floats]:
        """Prepared batches ``[n, C, H, W]``."""
        for start in range(0, len(self), size):
            images = self.images[start : start + size]
            if self.preprocessing is not None:
                yield np.stack(prepare_all(images, self.preprocessing))
            else:
                yield images.astype(np.float32 if images.dtype.kind == "f" else images.dtype)

    def digest(self) -> str:
        """SHA-256 of the images and labels in memory, in hexadecimal: the identity of the set.

        It covers, first for the images and then for the labels, a line such as ``images |u1 512,28,28,1``
        (numpy's name of the type, the shape) and the values in C order, little-endian; a line ``labels none``
        if there are none; ``targets`` and ``masks`` follow where they are known, then arrays of other
        inputs in the order of their names, as ``input NAME``. So it depends on the order, but neither on
        the origin of the images (source, names, split) nor on a model's preprocessing.
        """
        total = hashlib.sha256()
        stated = (("targets", self.targets), ("masks", self.masks))
        targets = [(name, array) for name, array in stated if array is not None]
        others = [(f"input {name}", self.others[name]) for name in sorted(self.others)]
        for name, array in (("images", self.images), ("labels", self.labels), *targets, *others):
            if array is None:
                total.update(f"{name} none\n".encode())
                continue
            values = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            shape = ",".join(map(str, values.shape))
            total.update(f"{name} {values.dtype.str} {shape}\n".encode())
            total.update(values.reshape(-1).view(np.uint8).data)
        return total.hexdigest()

    def occurs_in(self, other: ImageSet) -> NDArray[np.bool_]:
        """Which of the images are in another set ``[N]``, whatever their labels.

        Images are the same if their pixels are; if the sets have different forms (pixels and prepared floats,
        or pixels of different sizes), they are the same if they give the same input of the model.
        """
        if self._form == other._form:
            mine, theirs = self._pixel_checksums, other._pixel_checksums
        else:
            mine, theirs = self._input_checksums, other._input_checksums
        known = set(theirs)
        return np.array([checksum in known for checksum in mine], bool)

    @property
    def checksums(self) -> list[bytes]:
        """The SHA-256 of every image and its other inputs."""
        return self._pixel_checksums

    @property
    def _form(self) -> tuple[Any, ...]:
        return self.images.dtype, self.images.shape[1:], self.preprocessing

    @cached_property
    def _pixel_checksums(self) -> list[bytes]:
        return self._checksums(self.images)

    @cached_property
    def _input_checksums(self) -> list[bytes]:
        return self._checksums(self.inputs())

    def _checksums(self, images: Iterable[NDArray[Any]]) -> list[bytes]:
        others = [self.others[name] for name in sorted(self.others)]
        checksums = []
        for image, *rest in zip(images, *others, strict=True):
            total = hashlib.sha256(image.tobytes())
            for value in rest:
                total.update(value.tobytes())
            checksums.append(total.digest())
        return checksums

    def take(self, indices: NDArray[np.intp]) -> ImageSet:
        """Some of the images, in the order given."""
        labels = None if self.labels is None else self.labels[indices]
        targets = None if self.targets is None else self.targets[indices]
        masks = None if self.masks is None else self.masks[indices]
        names = tuple(self.names[k] for k in indices) if self.names else ()
        others = {name: array[indices] for name, array in self.others.items()}
        trained = None if self.trained is None else self.trained[indices]
        return replace(
            self,
            images=self.images[indices],
            labels=labels,
            names=names,
            whole=False,
            others=others,
            targets=targets,
            masks=masks,
            trained=trained,
        )

    def first(self, count: int | None) -> ImageSet:
        """At most ``count`` of the images, the first ones; all with None."""
        if count is None or count >= len(self):
            return self
        return self.take(np.arange(count))

    def draw(self, count: int, seed: int = 0) -> ImageSet:
        """At most ``count`` of the images, drawn at random (seeded), in their own order."""
        if count >= len(self):
            return self
        drawn = np.random.default_rng(seed).permutation(len(self))[:count]
        return self.take(np.sort(drawn))

    def without(self, other: ImageSet) -> ImageSet:
        """The images that do not occur in ``other`` (`occurs_in`)."""
        kept = np.flatnonzero(~self.occurs_in(other))
        return self if len(kept) == len(self) else self.take(kept)


def from_iterable(images: Iterable[Any], prep: Preprocessing | None, limit: int = 4096) -> ImageSet:
    """At most ``limit`` images of an iterator: files, Pillow images, or arrays of pixels
    (``Session.predict`` says which); without preprocessing, prepared floats ``[C, H, W]``.

    Raises:
        UsageError: an image cannot be read, or there is none.
    """
    taken = list(islice(images, limit))
    if prep is not None:
        prepared = list(ImageReader(prep).images(taken))
    else:
        prepared = [np.asarray(x, np.float32) for x in taken]
    if not prepared:
        raise UsageError("The iterator yielded no images.", "", "Provide 100 or more images.")
    stacked = np.stack(prepared)
    check_finite_images(stacked, "The iterator")
    return ImageSet("an iterator", stacked)


def check_finite_images(images: NDArray[Any], source: object) -> None:
    """Refuse prepared images with values that are NaN or infinite."""
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        bad = int((~np.isfinite(images)).reshape(len(images), -1).any(1).sum())
        raise UsageError(
            f"{source} has values that are NaN or infinite.",
            f"{bad} of {len(images)} images have them.",
            "Remove these values, or pass uint8 pixels [N, H, W, C], which are prepared automatically.",
        )


UNTRAINED = "held out from training"


def holdout_rule(
    images: ImageSet, classes: int, shares: Mapping[str, float], seed: int
) -> TrainingSplit:
    """The rule that holds out shares of each class; of a class with one image, none.

    Args:
        shares: of ``test`` and ``validation``, the latter of the images that remain.
    """
    keys = np.array([key_of(checksum, seed) for checksum in images.checksums], np.int64)
    limits = {"test": [0] * classes, "validation": [0] * classes}
    for label in range(classes):
        members = np.sort(keys[images.classes == label]).tolist()
        for name, share in shares.items():
            count = max(1, round(share * len(members))) if len(members) > 1 else 0
            if count:
                limits[name][label] = members[count - 1] + 1
            members = members[count:]
    rule = TrainingSplit(
        seed, split_thresholds(limits["test"]), split_thresholds(limits["validation"]), ""
    )
    trained = divided(images, rule)["train"].checksums
    chosen = sorted(trained, key=lambda checksum: key_of(checksum, seed))[:SAMPLE]
    return replace(rule, sample="".join(map(sample_of, chosen)))


def divided(images: ImageSet, rule: AnySplit) -> dict[str, ImageSet]:
    """The images by split. Those with equal pixels stay together: in the training images, or in the last set.

    Every part says how many of the images it is.
    """
    parts = np.array([
        rule.part(checksum, int(label))
        for checksum, label in zip(images.checksums, images.classes, strict=True)
    ])  # fmt: skip
    sets: dict[str, ImageSet] = {}
    for name in ("train", "validation", "test"):
        part = replace(images.take(np.flatnonzero(parts == name)), split=name)
        for other in sets.values():
            part = part.without(other)
        which = "trained on" if name == "train" else UNTRAINED
        sets[name] = replace(part, known=which, total=len(images))
    return sets


def part_of(
    images: ImageSet, split: str, limit: int | None, rule: AnySplit | None
) -> ImageSet | None:
    """The part of a set that a model's training held out, or kept; None if the rule does not divide it."""
    if rule is None or images.labels is None or images.images.dtype != np.uint8:
        return None
    applying = rule.applying(images.checksums, images.labels.tolist())
    part = None if applying is None else divided(images, applying)[split]
    return part if part is None or limit is None else part.draw(limit)


def marked(
    images: ImageSet, rule: AnySplit | None, checksums: Sequence[bytes] | None = None
) -> ImageSet:
    """The images, marked by whether the rule had them train the model."""
    if rule is None or (checksums is None and images.images.dtype != np.uint8):
        return images
    checksums = images.checksums if checksums is None else checksums
    labels = None if images.labels is None else images.labels.tolist()
    applying = None if labels is None else rule.applying(checksums, labels)
    if applying is None or labels is None:
        trained = [rule.known([each]) > 0 for each in checksums]
        return replace(images, trained=np.array(trained, bool), least=not rule.complete)
    trained = [
        applying.part(checksum, label) == "train"
        for checksum, label in zip(checksums, labels, strict=True)
    ]
    return replace(images, trained=np.array(trained, bool))
