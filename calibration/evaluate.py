"""Decisions of a file on images, compared with those of another file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError
from capsedge.judging.decisions import Decisions
from capsedge.runtime.profiling.measure import Limits, take_times
from capsedge.runtime.profiling.profiler import random_inputs
from capsedge.runtime.profiling.statistics import summarize
from capsedge.runtime.session import Session

RANKING = Limits(warmup=0.05, duration=0.0, iterations=30)
Scores = NDArray[np.float32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A file compared with its FP32 source.

    Attributes:
        images: number of images compared.
        accuracy: share of correct decisions; None without labels.
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


def scores(session: Session, data: ImageSet, progress: Progress | None = None) -> Scores:
    """Scores ``[N, J]`` of all images.

    Raises:
        ArtefactError: no output decides the class, or a score is NaN or infinite.
    """
    name = session.score_output
    if name is None:
        raise ArtefactError(
            f"{session.path} has no output that decides the class.",
            f"It needs lengths or logits; it has {', '.join(port.name for port in session.outputs)}.",
            "Export the model with `capsedge export`.",
        )
    parts, done = [], 0
    for images, outputs in session.run_batches(data.inputs(), [name]):
        parts.append(outputs[name])
        done += len(images)
        if progress is not None:
            progress(done, len(data))
    found = np.concatenate(parts).astype(np.float32)
    if not np.isfinite(found).all():
        raise ArtefactError(
            f"{session.path} computes {name} that are NaN or infinite.",
            f"On {int((~np.isfinite(found)).any(1).sum())} of {len(found)} images.",
            "Keep more layers in FP32: --precision mixed.",
        )
    return found


def compare(reference: Scores, found: Scores, data: ImageSet, session: Session) -> Outcome:
    """Decisions of a file against those of its source.

    Args:
        reference, found: scores ``[N, J]`` of the source and of the file.
        data: the images, with labels where they are known.
        session: of either file; it defines how scores decide.
    """
    decisions = Decisions.of(session)
    assert decisions is not None  # the file computed scores
    decisions.update(reference, found, data.labels)
    error = float(np.sqrt(np.square(reference.astype(np.float64) - found).mean()))
    return Outcome(
        decisions.images,
        decisions.accuracy_found,
        decisions.accuracy_reference,
        decisions.agreement,
        error,
    )


def latency(session: Session) -> float:
    """Median milliseconds per image; for ranking candidates, not for reports."""
    feeds = random_inputs(session, session.smallest_batch)
    return summarize(take_times(lambda: session.run(feeds), RANKING)).median
