"""Images to calibrate on and to report accuracy on, prepared by the model's own preprocessing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.imagesets import check_finite, read_images
from capsedge.runtime.images import prepare
from capsedge.runtime.metadata import Preprocessing

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    """Images with or without labels.

    Attributes:
        source: where they come from, without folders of this machine.
        images: pixels ``[N, H, W, C]`` uint8, or prepared floats ``[N, C, H, W]``.
        labels: their classes ``[N]``; None if not known.
        preprocessing: how pixels become the input; None if they are prepared.
    """

    source: str
    images: NDArray[Any]
    labels: NDArray[np.int64] | None
    preprocessing: Preprocessing | None

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int) -> Iterator[Floats]:
        """Prepared batches ``[n, C, H, W]``."""
        for start in range(0, len(self), size):
            part = self.images[start : start + size]
            if self.preprocessing is None:
                yield part.astype(np.float32)
            else:
                yield np.stack([prepare(image, self.preprocessing) for image in part])

    @cached_property
    def checksums(self) -> list[bytes]:
        """One SHA-256 an image, of its prepared input: the same however the image was stored."""
        return [hashlib.sha256(x.tobytes()).digest() for batch in self.batches(256) for x in batch]

    def sha256(self) -> str:
        """Checksum of all inputs, in their order."""
        return hashlib.sha256(b"".join(self.checksums)).hexdigest()

    def take(self, indices: NDArray[np.intp]) -> Images:
        """Some of the images, in the order given."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels)

    def draw(self, count: int, seed: int = 0) -> Images:
        """At most ``count`` of the images, drawn at random (seeded), in their own order."""
        if count >= len(self):
            return self
        drawn = np.random.default_rng(seed).permutation(len(self))[:count]
        return self.take(np.sort(drawn))


def load_images(source: Path | str, prep: Preprocessing | None, split: str) -> Images:
    """Read images of a data set folder, an archive, an idx file or a folder of images.

    Args:
        source, prep: as of ``imagesets.read_images``.
        split: ``train`` to calibrate, ``test`` to report accuracy.

    Raises:
        UsageError: nothing readable is there, it is empty, or it does not fit the model.
    """
    source = Path(source)
    found = read_images(source, prep, split)
    name = f"{source.name} ({split})" if found.split else source.name
    return Images(name, found.images, found.labels, found.preprocessing)


def from_iterable(images: Iterable[Any], prep: Preprocessing | None, limit: int = 4096) -> Images:
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
    return Images("an iterator", stacked, None, None)


def check_calibration(data: Images) -> list[str]:
    """Refuse images that no range can be taken from; returns warnings.

    Raises:
        UsageError: there is one image only, or all values of all images are the same.
    """
    if len(data) < 2:
        raise UsageError(
            "One image is not enough to calibrate on.",
            "The range of every activation would be that of this image, and others be cut off.",
            "Give 100 or more images of what the model will see.",
        )
    if all(float(np.ptp(batch)) == 0.0 for batch in data.batches(256)):
        raise UsageError(
            "The calibration images are constant.",
            f"Every value of the {len(data)} images of {data.source} is the same within its batch.",
            "Give images of what the model will see.",
        )
    if len(data) < 32:
        return [f"only {len(data)} calibration images: ranges may be too small; use 100 or more"]
    return []


def check_disjoint(calibration: Images, evaluation: Images) -> None:
    """Refuse accuracy that would be reported on calibration images.

    Raises:
        UsageError: an evaluation image was calibrated on.
    """
    seen = set(calibration.checksums)
    common = sum(1 for c in evaluation.checksums if c in seen)
    if common:
        raise UsageError(
            "Accuracy would be reported on images that were calibrated on.",
            f"{common} of {len(evaluation)} evaluation images are among the {len(calibration)} "
            "calibration images.",
            "Name other images with --data.",
        )


def without(data: Images, other: Images) -> Images:
    """The images that do not occur in ``other``."""
    known = set(other.checksums)
    kept = [k for k, c in enumerate(data.checksums) if c not in known]
    return data if len(kept) == len(data) else data.take(np.asarray(kept, np.intp))
