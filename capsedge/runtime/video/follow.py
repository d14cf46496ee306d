"""Predict every frame of a source, and measure each step."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsedge.errors import UsageError
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.session.predictions import KEEP, Prediction
from capsedge.runtime.session.session import Session
from capsedge.runtime.video.frames import Frame

if TYPE_CHECKING:
    from capsedge.runtime.session.ensemble import Ensemble

STEPS = ("decode", "wait", "prepare", "network", "output")
KEPT = 10_000  # durations per step, of the last frames


class StepDurations:
    """The last `KEPT` durations of a step, and the sum of all."""

    def __init__(self) -> None:
        self._last = array("d")
        self.count, self.total = 0, 0.0

    def add(self, seconds: float) -> None:
        if self.count < KEPT:
            self._last.append(seconds)
        else:
            self._last[self.count % KEPT] = seconds
        self.count += 1
        self.total += seconds

    def percentiles(self) -> tuple[float, float, float]:
        """p50, p90 and p99 in seconds."""
        if not self._last:
            return 0.0, 0.0, 0.0
        low, middle, high = np.percentile(np.array(self._last), [50, 90, 99])
        return float(low), float(middle), float(high)


@dataclass
class Pace:
    """How long the frames took.

    Attributes:
        steps: durations by step: ``decode`` (for a file in a process of its own, while the steps here work on
            the frame before), ``wait`` for the frame, ``prepare``, ``network``, and ``output``.
        frames: frames that were predicted.
        failed: images that could not be read.
    """

    steps: dict[str, StepDurations] = field(
        default_factory=lambda: {s: StepDurations() for s in STEPS}
    )
    frames: int = 0
    failed: int = 0
    _started: float | None = None
    _ended: float = 0.0

    @property
    def seconds(self) -> float:
        """From the request for the first frame to the end of the last."""
        return 0.0 if self._started is None else self._ended - self._started

    @property
    def rate(self) -> float:
        """Frames per second, end to end."""
        return self.frames / self.seconds if self.frames else 0.0

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure the block."""
        started = time.perf_counter()
        self._started = started if self._started is None else self._started
        try:
            yield
        finally:
            self._ended = time.perf_counter()
            self.steps[step].add(self._ended - started)

    def share(self, step: str) -> float:
        """Part of the time from start to end; that of ``decode`` may overlap with others."""
        return self.steps[step].total / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values; milliseconds."""
        steps = {}
        for name, durations in self.steps.items():
            if durations.count:
                p50, p90, p99 = (round(1000 * s, 4) for s in durations.percentiles())
                share = round(self.share(name), 4)
                steps[name] = {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "share": share}
        return {
            "frames": self.frames,
            "failed": self.failed,
            "seconds": round(self.seconds, 4),
            "frames_per_second": round(self.rate, 2),
            "steps": steps,
        }


@dataclass(frozen=True)
class PredictedFrame:
    """A frame with its prediction, or why it could not be read.

    Attributes:
        frame: the frame; None if it could not be read.
        image: the file, of a folder that is watched.
    """

    frame: Frame | None
    image: Path | None
    prediction: Prediction | None
    error: UsageError | None = None


def follow(
    model: Session | Ensemble,
    source: Iterable[Frame | Path],
    pace: Pace,
    *,
    top_k: int | None = None,
    threshold: float | None = None,
    invert: bool = False,
) -> Iterator[PredictedFrame]:
    """Predict one frame after another; of a camera always the newest.

    Args:
        source: frames, or files of images, of which one that cannot be read does not stop the others.
        pace: gets the durations.
        top_k, threshold, invert: as for `Session.predict`.
    """
    items, number, start = iter(source), 0, time.monotonic()
    while True:
        with pace.timed("wait"):
            item = next(items, None)
        if item is None:
            return
        image = None if isinstance(item, Frame) else item
        try:
            frame = item if isinstance(item, Frame) else _read(item, number, start)
            if frame.decoding:
                pace.steps["decode"].add(frame.decoding)
            with pace.timed("prepare"):
                layout = "HW" if frame.pixels.ndim == 2 else "HWC"
                prepared = model.prepare(frame.pixels, invert, layout=layout)
        except UsageError as error:
            if image is None:
                raise
            pace.failed += 1
            yield PredictedFrame(None, image, None, error)
            continue
        with pace.timed("network"):
            (prediction,) = model.predict(
                prepared[None], top_k, threshold, prepared=True, sizes=[frame.pixels.shape[:2]]
            )
        if invert:  # prepared floats do not show it
            prediction = replace(prediction, hint=KEEP if prediction.hint else "")
        pace.frames += 1
        number += 1
        yield PredictedFrame(frame, image, prediction)


def _read(path: Path, number: int, start: float) -> Frame:
    started = time.perf_counter()
    pixels = read_image(path)
    now = time.perf_counter()
    return Frame(pixels, number, time.monotonic() - start, now - started)
