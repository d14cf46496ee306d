"""The one type for a set of images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.vision.images import prepare

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ImageSet:
    """Images with or without labels.

    Attributes:
        source: where they come from.
        images: pixels ``[N, H, W, C]`` uint8, or prepared floats ``[N, C, H, W]``.
        labels: their classes ``[N]``; None if not known.
        preprocessing: how pixels become a model's input; None if they are prepared, or for no model.
        names: of the files of single images; empty for other sources.
        split: that was read of a data set folder; empty for other sources.
        whole: whether these are all images of the source.
    """

    source: str
    images: NDArray[Any]
    labels: NDArray[np.int64] | None = None
    preprocessing: Preprocessing | None = None
    names: tuple[str, ...] = ()
    split: str = ""
    whole: bool = True

    def __len__(self) -> int:
        return len(self.images)

    @property
    def classes(self) -> NDArray[np.int64]:
        """The labels of a set that has to have them.

        Raises:
            UsageError: it has none.
        """
        if self.labels is None:
            raise UsageError(
                f"{self.source} has no labels.",
                "",
                "Name labelled images: one sub-folder a class, or an npz file with 'labels'.",
            )
        return self.labels

    def inputs(self) -> Iterator[Floats]:
        """The images as a model takes them ``[C, H, W]``, prepared one by one."""
        for image in self.images:
            if self.preprocessing is None:
                yield image.astype(np.float32)
            else:
                yield prepare(image, self.preprocessing)

    def batches(self, size: int) -> Iterator[Floats]:
        """Prepared batches ``[n, C, H, W]``."""
        rest = self.inputs()
        while batch := list(islice(rest, size)):
            yield np.stack(batch)

    @cached_property
    def checksums(self) -> list[bytes]:
        """One SHA-256 an image, of its prepared input: the same however the image was stored."""
        return [hashlib.sha256(x.tobytes()).digest() for batch in self.batches(256) for x in batch]

    def sha256(self) -> str:
        """Checksum of all inputs, in their order."""
        return hashlib.sha256(b"".join(self.checksums)).hexdigest()

    def stored_sha256(self) -> str:
        """Checksum of the pixels (or floats) themselves."""
        return hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()

    def take(self, indices: NDArray[np.intp]) -> ImageSet:
        """Some of the images, in the order given."""
        labels = None if self.labels is None else self.labels[indices]
        names = tuple(self.names[k] for k in indices) if self.names else ()
        return replace(self, images=self.images[indices], labels=labels, names=names, whole=False)

    def first(self, count: int | None) -> ImageSet:
        """At most ``count`` of the images, the first ones; all with None."""
        if count is None or count >= len(self):
            return self
        labels = None if self.labels is None else self.labels[:count]
        return replace(
            self, images=self.images[:count], labels=labels, names=self.names[:count], whole=False
        )

    def draw(self, count: int, seed: int = 0) -> ImageSet:
        """At most ``count`` of the images, drawn at random (seeded), in their own order."""
        if count >= len(self):
            return self
        drawn = np.random.default_rng(seed).permutation(len(self))[:count]
        return self.take(np.sort(drawn))

    def without(self, other: ImageSet) -> ImageSet:
        """The images that do not occur in ``other``."""
        known = set(other.checksums)
        kept = [k for k, c in enumerate(self.checksums) if c not in known]
        return self if len(kept) == len(self) else self.take(np.asarray(kept, np.intp))


def from_iterable(images: Iterable[Any], prep: Preprocessing | None, limit: int = 4096) -> ImageSet:
    """At most ``limit`` images of an iterator: files, Pillow images, or arrays of pixels
    (``Session.predict`` says which); without preprocessing, prepared floats ``[C, H, W]``.

    Raises:
        UsageError: an image cannot be read, or there is none.
    """
    taken = list(islice(images, limit))
    if prep is not None:
        prepared = [prepare(x, prep, name=f"image {k}") for k, x in enumerate(taken)]
    else:
        prepared = [np.asarray(x, np.float32) for x in taken]
    if not prepared:
        raise UsageError("The iterator gave no images.", "", "Give 100 or more.")
    stacked = np.stack(prepared)
    check_finite(stacked, "The iterator")
    return ImageSet("an iterator", stacked)


def check_finite(images: NDArray[Any], source: object) -> None:
    """Refuse prepared images that have values which are no numbers.

    Raises:
        UsageError: there are such values.
    """
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        bad = int((~np.isfinite(images)).reshape(len(images), -1).any(1).sum())
        raise UsageError(
            f"{source} has values that are NaN or infinite.",
            f"{bad} of {len(images)} images have them.",
            "Clean the arrays; or give uint8 pixels [N, H, W, C] to have them prepared.",
        )
