"""What a comparison runs on: real samples, and hard cases that no data set holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.images import SUFFIXES, prepare
from capsedge.runtime.metadata import Preprocessing

Floats = NDArray[np.float32]
GENERATED = 64  # images drawn when no data is given
_IDX = "-images-idx3-ubyte"


@dataclass(frozen=True)
class Samples:
    """Images to compare on, prepared for the model batch by batch.

    Attributes:
        source: where they come from, for the certificate.
        images: prepared float images ``[N, C, H, W]``, or pixels ``[N, H, W, C]``.
        labels: their classes ``[N]``; None if not known.
        preprocessing: how pixels become the input; None if the images are prepared.
        names: what the certificate and flips call them; their numbers if empty.
    """

    source: str
    images: NDArray[np.generic]
    labels: NDArray[np.int64] | None = None
    preprocessing: Preprocessing | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def sha256(self) -> str:
        """Checksum of the pixels (or floats) themselves."""
        return hashlib.sha256(np.ascontiguousarray(self.images).tobytes()).hexdigest()

    def batches(self, size: int) -> Iterator[tuple[Floats, NDArray[np.int64] | None]]:
        """Prepared batches ``[n, C, H, W]`` with their labels."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            labels = None if self.labels is None else self.labels[part]
            if self.preprocessing is None:
                yield self.images[part].astype(np.float32), labels
            else:
                prepared = [prepare(image, self.preprocessing) for image in self.images[part]]
                yield np.stack(prepared), labels


def load_samples(source: Path | str, prep: Preprocessing | None, limit: int | None) -> Samples:
    """Read samples from a folder, an npz file or idx files.

    Args:
        source: a data set folder (its test split), an npz file with ``images`` (and ``labels``), an idx
            file of images (its labels beside it), a folder of images, or one image.
        prep: the model's preprocessing; None takes prepared float arrays only.
        limit: the first so many.

    Raises:
        UsageError: nothing readable is there, or it does not fit the model.
    """
    source = Path(source)
    if not source.exists():
        raise UsageError(
            f"There is no {source}.", "", "Name data that exists, or leave --data out."
        )
    if source.suffix == ".npz":
        found = _npz(source, prep)
    elif prep is None:
        raise UsageError(
            f"{source} cannot be prepared for this model.",
            "The file says nothing of preprocessing.",
            "Give prepared float arrays [N, C, H, W] in an npz file.",
        )
    elif source.is_file() and source.suffix.lower() in SUFFIXES:
        found = _image_files([source], prep)
    elif source.is_dir() and (
        files := sorted(p for p in source.iterdir() if p.suffix.lower() in SUFFIXES)
    ):
        found = _image_files(files[:limit], prep)
    elif source.is_file():
        found = _idx(source, prep)
    else:
        from capsedge.training.data import load_images

        loaded = load_images(source, "test", prep)
        found = Samples(str(source), loaded.images, loaded.labels, prep)
    if len(found) == 0:
        raise UsageError(f"{source} holds no images.", "", "Name a folder or file with images.")
    if limit is None or limit >= len(found):
        return found
    labels = None if found.labels is None else found.labels[:limit]
    return Samples(
        f"{found.source} (first {limit})",
        found.images[:limit],
        labels,
        found.preprocessing,
        found.names[:limit],
    )


def _image_files(files: list[Path], prep: Preprocessing) -> Samples:
    images = np.stack([prepare(file, prep) for file in files])
    source = str(files[0] if len(files) == 1 else files[0].parent)
    return Samples(source, images, names=tuple(file.name for file in files))


def _idx(source: Path, prep: Preprocessing) -> Samples:
    from capsedge.training.data import read_idx

    images = read_idx(source)
    if images.ndim != 3:
        raise UsageError(
            f"{source} holds no images.", f"Its shape is {list(images.shape)}.", "Wanted [N, H, W]."
        )
    beside = source.with_name(source.name.replace(_IDX, "-labels-idx1-ubyte"))
    labels = None
    if beside != source and beside.is_file():
        labels = read_idx(beside).astype(np.int64)
        if labels.shape != (len(images),):
            raise UsageError(f"{beside} has {len(labels)} labels for {len(images)} images.")
    return Samples(str(source), images[..., None], labels, prep)


def _npz(source: Path, prep: Preprocessing | None) -> Samples:
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
    if images.dtype.kind == "f":
        if images.ndim != 4 or not np.isfinite(images).all():
            raise UsageError(
                f"{source}: images are {images.dtype} {list(images.shape)}.",
                "Prepared images are finite floats [N, C, H, W].",
                "Give uint8 pixels [N, H, W, C] to have them prepared.",
            )
        return Samples(str(source), images, labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8 or prep is None:
        raise UsageError(
            f"{source}: images are {images.dtype} {list(images.shape)}.",
            "Wanted uint8 pixels [N, H, W] or [N, H, W, C], or prepared floats [N, C, H, W].",
        )
    return Samples(str(source), images, labels, prep)


def shipped_samples(
    prep: Preprocessing | None, shape: tuple[int, int, int], limit: int | None
) -> Samples:
    """The package's own samples: its drawn images where they fit, and generated strokes.

    Args:
        shape: of one input ``(C, H, W)``.
    """
    parts = [generated(shape, prep, GENERATED)]
    folder = Path(__file__).parents[1] / "samples"
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if prep is not None and prep.channels in (1, 3) and files:
        parts.insert(0, np.stack([prepare(file, prep) for file in files]))
    names = (*(f.name for f in files if len(parts) == 2), *(f"drawn {k}" for k in range(GENERATED)))
    images = np.concatenate(parts)[:limit]
    return Samples("samples of the package", images, names=names[: len(images)])


def generated(shape: tuple[int, int, int], prep: Preprocessing | None, count: int) -> Floats:
    """Pen strokes on black, seeded: soft-edged random curves with the statistics of handwriting.

    Returns:
        ``[count, C, H, W]``, prepared.
    """
    rng = np.random.default_rng(2017)
    channels, height, width = shape
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = np.zeros((count, channels, height, width))
    t = np.linspace(0, 1, 48)[:, None]
    for image in images:
        for channel in image if rng.random() < 0.3 else [image]:
            for _ in range(rng.integers(1, 4)):
                # A cubic Bézier curve inside the middle of the picture.
                p = rng.uniform(0.15, 0.85, (4, 2))
                curve = (
                    (1 - t) ** 3 * p[0]
                    + 3 * t * (1 - t) ** 2 * p[1]
                    + 3 * t * t * (1 - t) * p[2]
                    + t**3 * p[3]
                )
                distance = np.hypot(y[..., None] - curve[:, 0], x[..., None] - curve[:, 1]).min(-1)
                ink = np.clip(1.6 - distance / rng.uniform(0.02, 0.05), 0, 1) * rng.uniform(0.6, 1)
                np.maximum(channel, ink, out=channel)
    return _prepared(images, prep)


def hard_cases(
    shape: tuple[int, int, int], prep: Preprocessing | None
) -> tuple[tuple[str, ...], Floats]:
    """Inputs at the edges: no norm, tiny and huge norms, ties, no structure, too much structure.

    Returns:
        Their names, and prepared images ``[N, C, H, W]``.
    """
    _, height, width = shape
    rng = np.random.default_rng(2018)
    y, x = np.mgrid[0:height, 0:width]
    noise = rng.random(shape)
    strokes = generated(shape, None, 1)[0].astype(np.float64)

    def everywhere(picture: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.broadcast_to(picture, shape).astype(np.float64)

    spike = np.zeros((height, width))
    spike[height // 2, width // 2] = 1
    symmetric = (strokes + strokes[:, :, ::-1]) / 2
    pixels = {
        "black": np.zeros(shape),
        "white": np.ones(shape),
        "grey": np.full(shape, 0.5),
        "faint noise": noise / 255,
        "noise": noise,
        "saturated noise": (noise > 0.5).astype(np.float64),
        "checkerboard 1": everywhere(((y + x) % 2).astype(np.float64)),
        "checkerboard 4": everywhere((((y // 4) + (x // 4)) % 2).astype(np.float64)),
        "rows": everywhere((y % 2).astype(np.float64)),
        "one pixel": everywhere(spike),
        "ramp": everywhere(x / max(width - 1, 1)),
        "mirror image": symmetric,  # children that tie pairwise
        "inverted strokes": 1 - strokes,
    }
    prepared = {name: _prepared(image, prep) for name, image in pixels.items()}
    # Beyond what pixels reach: straight into the model's input.
    prepared |= {
        "zero input": np.zeros(shape, np.float32),
        "tiny norm": (strokes * 1e-6).astype(np.float32),
        "huge norm": (strokes * 1e3).astype(np.float32),
        "huge noise": ((noise - 0.5) * 2e3).astype(np.float32),
    }
    return tuple(prepared), np.stack(list(prepared.values()))


def _prepared(images: NDArray[np.float64], prep: Preprocessing | None) -> Floats:
    """Values in [0, 1] ``[..., C, H, W]`` as the model's input."""
    if prep is None:
        return images.astype(np.float32)
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (prep.mean, prep.std))
    return np.asarray((images * 255 * prep.scale - mean) / std, np.float32)
