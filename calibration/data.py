"""Images to calibrate on and to report accuracy on, prepared by the model's own preprocessing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images import SUFFIXES, prepare
from capsedge.runtime.metadata import Preprocessing

Floats = NDArray[np.float32]
_IDX = "-images-idx3-ubyte"


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

    def checksums(self) -> list[bytes]:
        """One SHA-256 an image, of its prepared input: the same however the image was stored."""
        return [hashlib.sha256(x.tobytes()).digest() for batch in self.batches(256) for x in batch]

    def sha256(self) -> str:
        """Checksum of all inputs, in their order."""
        return hashlib.sha256(b"".join(self.checksums())).hexdigest()

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
    """Read images from a data set folder, an npz file, an idx file, or a folder of images.

    Args:
        source: a folder as ``capsedge train`` reads (its ``split`` is taken), an npz file with ``images``
            and perhaps ``labels``, an idx file of images (labels beside it), or a folder of images.
        prep: the model's preprocessing; None takes prepared float arrays only.
        split: ``train`` to calibrate, ``test`` to report accuracy.

    Raises:
        UsageError: nothing readable is there, it is empty, or it does not fit the model.
    """
    source = Path(source)
    if not source.exists():
        raise UsageError(f"There is no {source}.", "", "Name a folder or file with images.")
    if source.suffix == ".npz":
        found = _npz(source, prep)
    elif prep is None:
        raise UsageError(
            f"{source} cannot be prepared for this model.",
            "The model's file says nothing of preprocessing.",
            "Give prepared float arrays [N, C, H, W] in an npz file.",
        )
    elif source.is_file():
        found = _idx(source, prep)
    else:
        found = _folder(source, prep, split)
    return _checked(found)


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
    empty = np.zeros((0, 1, 1, 1), np.float32)
    return _checked(Images("an iterator", np.stack(prepared) if prepared else empty, None, None))


def _checked(found: Images) -> Images:
    if len(found) == 0:
        raise UsageError(
            f"{found.source} holds no images.",
            "",
            "Name a folder with PNG or JPEG files, an npz or an idx file.",
        )
    if found.images.dtype.kind == "f" and not np.isfinite(found.images).all():
        bad = int((~np.isfinite(found.images)).reshape(len(found), -1).any(1).sum())
        raise UsageError(
            f"{found.source} has values that are NaN or infinite.",
            f"{bad} of {len(found)} images have them.",
            "Clean the arrays: calibration would take the range of the model from them.",
        )
    return found


def _npz(source: Path, prep: Preprocessing | None) -> Images:
    try:
        with np.load(source, allow_pickle=False) as archive:
            images = archive["images"]
            labels = archive["labels"].astype(np.int64) if "labels" in archive else None
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise UsageError(
            f"{source} cannot be read.",
            f"{type(error).__name__}: {error}.",
            "It needs an array 'images', and 'labels' for accuracy.",
        ) from error
    if labels is not None and labels.shape != (len(images),):
        raise UsageError(f"{source} has labels {list(labels.shape)} for {len(images)} images.")
    if images.dtype.kind == "f" and images.ndim == 4:
        return Images(source.name, images, labels, None)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8 or prep is None:
        raise UsageError(
            f"{source}: images are {images.dtype} {list(images.shape)}.",
            "Wanted uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
        )
    return Images(source.name, images, labels, prep)


def _idx(source: Path, prep: Preprocessing) -> Images:
    from capsedge.training.data import read_idx

    images = read_idx(source)
    if images.ndim != 3:
        raise UsageError(
            f"{source} holds no images.", f"Its shape is {list(images.shape)}.", "Wanted [N, H, W]."
        )
    beside = source.with_name(source.name.replace(_IDX, "-labels-idx1-ubyte"))
    labels = read_idx(beside).astype(np.int64) if beside != source and beside.is_file() else None
    if labels is not None and labels.shape != (len(images),):
        raise UsageError(f"{beside} has {len(labels)} labels for {len(images)} images.")
    return Images(source.name, images[..., None], labels, prep)


def _folder(source: Path, prep: Preprocessing, split: str) -> Images:
    files = sorted(p for p in source.iterdir() if p.suffix.lower() in SUFFIXES)
    if files:
        prepared = np.stack([prepare(file, prep) for file in files])
        return Images(source.name, prepared, None, None)
    from capsedge.training.data import load_images as load_split

    loaded = load_split(source, split, prep)
    return Images(f"{source.name} ({split})", loaded.images, loaded.labels, prep)


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
    seen = set(calibration.checksums())
    common = sum(1 for c in evaluation.checksums() if c in seen)
    if common:
        raise UsageError(
            "Accuracy would be reported on images that were calibrated on.",
            f"{common} of {len(evaluation)} evaluation images are among the {len(calibration)} "
            "calibration images.",
            "Name other images with --data.",
        )


def without(data: Images, other: Images) -> Images:
    """The images that do not occur in ``other``."""
    known = set(other.checksums())
    kept = [k for k, c in enumerate(data.checksums()) if c not in known]
    return data if len(kept) == len(data) else data.take(np.asarray(kept, np.intp))
