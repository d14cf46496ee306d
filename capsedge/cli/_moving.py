"""``capsedge infer`` on moving pictures: a video, a camera, or a folder that is watched."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.cli import _output, _process
from capsedge.errors import CapsedgeError, ExitCode, UsageError
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.video.follow import Pace, PredictedFrame, follow
from capsedge.runtime.video.frame_sources import Camera, VideoFile, WatchedFolder
from capsedge.runtime.video.frames import camera_device
from capsedge.runtime.video.outputs import FrameOutput, check_times, open_output, texts

if TYPE_CHECKING:
    from capsedge.runtime.session.ensemble import Ensemble
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session

MovingPicture = VideoFile | Camera | WatchedFolder
_REFRESH, _SLOW = 0.1, 5.0  # seconds between status lines: on a terminal, and elsewhere
_CLASSES = 10  # shown in the summary


@dataclass(frozen=True)
class Choices:
    """What the command line chose.

    Attributes:
        top_k, threshold, invert: as for `Session.predict`.
        output: where frames are written to; None for nowhere.
        as_json: whether one line of JSON is printed for each frame.
    """

    top_k: int | None
    threshold: float | None
    invert: bool
    output: Path | None
    as_json: bool


def check_moving(
    images: Sequence[Path], watch: bool, output: Path | None, **refused: object
) -> None:
    """Refuse what does not go with moving pictures.

    Args:
        refused: options of still images and arrays.
    """
    given = next((name for name, value in refused.items() if value), None)
    if given is not None:
        raise UsageError(
            f"--{given} is not for moving pictures.", "", f"Leave out --{given}, or pass images."
        )
    if len(images) != 1:
        raise UsageError(
            "infer takes one moving picture.",
            f"{len(images)} paths were given."
            if images
            else "--watch needs a folder, and none was given.",
            "Run it once for each.",
        )
    if watch and output is not None and output.resolve() == images[0].resolve():
        raise UsageError(
            f"Cannot write to {output}.", "It is watched for new images.", "Name another folder."
        )
    check_times(output, timed=not watch)


def infer_moving(
    path: Path, watch: bool, models: Sequence[str], options: RuntimeOptions, choices: Choices
) -> None:
    """Predict every frame, print and write it, and then a summary.

    Raises:
        SystemExit: it was interrupted, the source failed after some frames, or images could not be read.
    """
    from capsedge.runtime.load import load

    source = _source(path, watch)
    with load(list(models) if len(models) > 1 else models[0], options) as model:
        run = _Playback(model, source, path, choices)
        written = choices.output
        with (
            nullcontext()
            if written is None
            else open_output(written, lambda: _rate(source)) as output
        ):
            run.follow(output)
        run.close(choices.output)


def _source(path: Path, watch: bool) -> MovingPicture:
    if watch:
        return WatchedFolder(path)
    device = camera_device(path)
    return VideoFile(path) if device is None else Camera(device)


def _rate(source: MovingPicture) -> float | None:
    return None if isinstance(source, WatchedFolder) else source.rate


@dataclass
class _Playback:
    """One command: what was seen, and how it ended."""

    model: Session | Ensemble
    source: MovingPicture
    path: Path
    choices: Choices
    pace: Pace = field(default_factory=Pace)
    labels: Counter[str] = field(default_factory=Counter)
    ranges: dict[str, _Range] = field(default_factory=dict)
    error: CapsedgeError | None = None
    interrupted: bool = False
    shown: float = 0.0  # when the last status line was printed

    def follow(self, output: FrameOutput | None) -> None:
        """Take frame after frame, until the source ends or fails, or Ctrl-C."""
        chosen = self.choices
        try:
            for seen in follow(
                self.model,
                self.source,
                self.pace,
                top_k=chosen.top_k,
                threshold=chosen.threshold,
                invert=chosen.invert,
            ):
                self._take(seen, output)
        except KeyboardInterrupt as error:
            _process.note_arrival(error)
            self.interrupted = True
        except CapsedgeError as error:
            if not self.pace.frames:
                raise
            self.error = error

    def _take(self, seen: PredictedFrame, output: FrameOutput | None) -> None:
        line = line_of(seen)
        if seen.frame is None or seen.prediction is None:
            assert seen.error is not None
            _output.log_error(seen.error)
        elif output is not None:
            with self.pace.timed("output"):
                name = f"{seen.frame.index:06}" if seen.image is None else seen.image.stem
                output.write(name, seen.frame, seen.prediction, line)
        if self.choices.as_json:
            _output.print_json_line(line)
        if seen.prediction is not None:
            self._count(seen.prediction)
            if not self.choices.as_json:
                self._show(line, seen.prediction)

    def _count(self, prediction: Prediction) -> None:
        for value in prediction.values:
            self.ranges.setdefault(value.name, _Range(value.unit)).add(value.value)
        for area in prediction.areas:
            self.ranges.setdefault(area.name, _Range("%")).add(100 * area.share)
        if not (prediction.values or prediction.areas):
            self.labels[prediction.label or "-"] += 1

    def _show(self, line: dict[str, Any], prediction: Prediction) -> None:
        """A status line: on a terminal it is written over, elsewhere a new one is printed now and then."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if now - self.shown < (_REFRESH if terminal else _SLOW):
            return
        self.shown = now
        answer = (
            ", ".join(map(str, prediction.values or prediction.labels or texts(prediction))) or "-"
        )
        where = line.get("image") or f"frame {line['frame']}"
        text = f"{where}: {answer}; {self.pace.rate:.1f} frames per second"
        (_output.show_status if terminal else _output.log)(text)

    @property
    def dropped(self) -> int:
        return 0 if isinstance(self.source, WatchedFolder) else self.source.dropped

    def close(self, written: Path | None) -> None:
        """Print the summary, and end the command if it did not end well."""
        if self.shown and sys.stderr.isatty():
            _output.show_status("")
        self._print_json() if self.choices.as_json else self._print()
        if written is not None and self.pace.frames:
            _output.log(f"wrote {written}")
        if self.error is not None:
            _output.log_error(self.error)
        if self.pace.failed:
            several = "" if self.pace.failed == 1 else "s"
            _output.log(f"{self.pace.failed} image{several} could not be read")
        if self.interrupted:
            raise SystemExit(_process.exit_code() or _process.INTERRUPTED)
        if self.error is not None:
            raise SystemExit(int(self.error.exit_code))
        if self.pace.failed:
            raise SystemExit(int(ExitCode.USAGE))

    def _print_json(self) -> None:
        if self.error is not None:
            document = _explained(self.error) | {"exit_code": int(self.error.exit_code)}
            _output.print_json_line(document)
        summary: dict[str, Any] = {
            "source": str(self.path),
            "models": [str(path) for path in self.model.paths],
            "ops": self.model.ops,
            **self.pace.to_dict(),
            "dropped": self.dropped,
            "interrupted": self.interrupted,
        }
        _output.print_json_line({"summary": summary})

    def _print(self) -> None:
        pace = self.pace
        title = f"{self.model.name}, {self.model.ops} operators"
        counts = self.labels.most_common(_CLASSES)
        rows = [[name, str(count), f"{count / pace.frames:.1%}"] for name, count in counts]
        if rows:
            _output.print_table(title, ["class", "frames", "share"], rows)
        if self.ranges:
            cells = [[name, *seen.cells()] for name, seen in self.ranges.items()]
            _output.print_table(title, ["value", "least", "mean", "largest"], cells)
        steps = [
            [name, *(f"{1000 * s:.2f}" for s in d.percentiles()), f"{pace.share(name):.1%}"]
            for name, d in pace.steps.items()
            if d.count
        ]
        if steps:
            _output.print_table("milliseconds", ["step", "p50", "p90", "p99", "share"], steps)
        dropped = f", {self.dropped} dropped" if camera_device(self.path) else ""
        _output.say(
            f"{self.path}: {pace.frames} frames in {pace.seconds:.2f} s, "
            f"{pace.rate:.1f} frames per second{dropped}"
        )


class _Range:
    """The range and the mean of a value."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._low, self._high = float("inf"), float("-inf")
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._low, self._high = min(self._low, value), max(self._high, value)
        self._sum += value
        self._count += 1

    def cells(self) -> list[str]:
        from capsedge.runtime.session.predictions import with_unit

        mean = self._sum / self._count
        return [with_unit(value, self._unit) for value in (self._low, mean, self._high)]


def line_of(seen: PredictedFrame) -> dict[str, Any]:
    """What is printed of a frame as JSON."""
    line: dict[str, Any] = {} if seen.image is None else {"image": str(seen.image)}
    if seen.error is not None:
        return line | _explained(seen.error)
    assert seen.frame is not None
    assert seen.prediction is not None
    if seen.image is None:
        line["frame"] = seen.frame.index
    return line | {"seconds": seen.frame.seconds} | seen.prediction.to_dict()


def _explained(error: CapsedgeError) -> dict[str, str]:
    return {"error": error.what, "why": error.why, "fix": error.command}
