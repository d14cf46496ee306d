"""Decisions of a file on images, and how they differ from another's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError
from capsedge.runtime.session import DEFAULT_THRESHOLD, SCORES, Session, load

BATCH = 32
Scores = NDArray[np.float32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A file against its FP32 source.

    Attributes:
        images: compared.
        accuracy: share of right decisions; None without labels.
        reference: the source's accuracy; None without labels.
        agreement: share of equal decisions.
        error: root mean squared difference of the scores.
    """

    images: int
    accuracy: float | None
    reference: float | None
    agreement: float
    error: float

    @property
    def drop(self) -> float:
        """Points of accuracy lost; without labels, points of decisions changed."""
        if self.accuracy is None or self.reference is None:
            return 100.0 * (1.0 - self.agreement)
        return 100.0 * (self.reference - self.accuracy)

    def to_dict(self) -> dict[str, float | int | None]:
        """JSON values."""
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "accuracy_fp32": self.reference,
            "drop_points": self.drop,
            "agreement": self.agreement,
            "score_rms_error": self.error,
        }


def score_name(session: Session) -> str:
    """The output that decides."""
    return next(p.name for p in session.outputs if p.name in SCORES)


def scores(path: Path | str, data: ImageSet, progress: Progress | None = None) -> Scores:
    """Scores ``[N, J]`` of all images.

    Raises:
        ArtefactError: a score is NaN or infinite.
    """
    session = load(path)
    name = score_name(session)
    size = session.batch or BATCH
    parts, done = [], 0
    for images in data.batches(size):
        count = len(images)
        if count < size and session.batch is not None:
            rest = np.zeros((size - count, *images.shape[1:]), np.float32)
            images = np.concatenate([images, rest])
        parts.append(session.run(images.astype(session.inputs[0].dtype))[name][:count])
        done += count
        if progress is not None:
            progress(done, len(data))
    found = np.concatenate(parts).astype(np.float32)
    if not np.isfinite(found).all():
        raise ArtefactError(
            f"{path} computes {name} that are NaN or infinite.",
            f"On {int((~np.isfinite(found)).any(1).sum())} of {len(found)} images.",
            "Keep more layers in FP32: --precision mixed.",
        )
    return found


def compare(reference: Scores, found: Scores, data: ImageSet, session: Session) -> Outcome:
    """Decisions of a file against those of its source."""
    several = session.metadata is not None and session.metadata.task == "multi-label"
    threshold = 0.0 if score_name(session) == "logits" else DEFAULT_THRESHOLD
    if several:
        agreement = float(((reference >= threshold) == (found >= threshold)).all(1).mean())
    else:
        agreement = float((reference.argmax(1) == found.argmax(1)).mean())
    accuracy = expected = None
    if data.labels is not None and not several:
        accuracy = float((found.argmax(1) == data.labels).mean())
        expected = float((reference.argmax(1) == data.labels).mean())
    error = float(np.sqrt(np.square(reference.astype(np.float64) - found).mean()))
    return Outcome(len(reference), accuracy, expected, agreement, error)


def latency(path: Path | str, threads: int = 2, runs: int = 30) -> float:
    """Median milliseconds of one image; for ranking candidates, not for reports."""
    session = load(path, threads=threads)
    shape = [session.batch or 1, *(int(d or 1) for d in session.inputs[0].shape[1:])]
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    images = images.astype(session.inputs[0].dtype)
    seconds = []
    for k in range(runs + 5):
        start = time.perf_counter()
        session.run(images)
        if k >= 5:
            seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds))
