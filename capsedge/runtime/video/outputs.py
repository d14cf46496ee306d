"""What is written of a moving picture: a video, pictures in a folder, or lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import atomic_writer, make_folder, write_bytes
from capsedge.runtime.session.mask_files import picture_png
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.video.drawing import draw_prediction
from capsedge.runtime.video.frames import Frame, check_pyav

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

LINES_SUFFIX = ".jsonl"
CONTAINERS = {".mp4": "mp4", ".mkv": "matroska", ".mov": "mov"}
_ENCODERS = ("libx264", "libopenh264", "mpeg4")  # the first that PyAV's FFmpeg has
_TICKS = 90_000  # of a second, the unit of times in the video
_RATE = 30  # frames per second, where the source does not tell


Rate: TypeAlias = "Callable[[], float | None]"


def rate_of(rate: Rate) -> float:
    """Frames per second, assumed where the source does not tell."""
    return rate() or _RATE


class FrameOutput(Protocol):
    """Takes one frame after another."""

    def write(
        self, name: str, frame: Frame, prediction: Prediction, line: Mapping[str, Any]
    ) -> None:
        """Add a frame.

        Args:
            name: of the frame, without a suffix.
            line: what is printed of it as JSON.
        """


def is_folder_output(path: Path) -> bool:
    """Whether pictures go into a folder of this name: it has no suffix of a file."""
    return path.suffix.lower() not in (LINES_SUFFIX, *CONTAINERS)


def open_output(path: Path, rate: Rate) -> AbstractContextManager[FrameOutput]:
    """The output for a path: by its suffix ``.mp4``, ``.mkv``, ``.mov`` or ``.jsonl``, otherwise a folder.

    A file is complete when the block ends; if the block fails, an older file stays as it was.

    Args:
        rate: gives the frames per second of the source once its first frame is there. They only inform the
            encoder: every frame keeps its time.

    Raises:
        UsageError: the path cannot be written.
        EnvironmentProblem: PyAV is missing, or has no encoder.
    """
    suffix = path.suffix.lower()
    if suffix == LINES_SUFFIX:
        return _lines(path)
    return _video(path, CONTAINERS[suffix], rate) if suffix in CONTAINERS else _pictures(path)


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(
        self, name: str, frame: Frame, prediction: Prediction, line: Mapping[str, Any]
    ) -> None:
        self._file.write(f"{json.dumps(line, allow_nan=False)}\n".encode())


@contextmanager
def _lines(path: Path) -> Iterator[FrameOutput]:
    with atomic_writer(path) as file:
        yield _JsonLines(file)


class _Pictures:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(
        self, name: str, frame: Frame, prediction: Prediction, line: Mapping[str, Any]
    ) -> None:
        picture = picture_png(draw_prediction(frame.pixels, prediction))
        write_bytes(self._folder / f"{name}.png", picture)


@contextmanager
def _pictures(folder: Path) -> Iterator[FrameOutput]:
    make_folder(folder)
    yield _Pictures(folder)


class _NoFrames(Exception):
    """There is nothing to make a video of."""


class _Video:
    """Encodes frames as H.264; all have the size of the first, and the time that they are shown."""

    def __init__(self, container: OutputContainer, encoder: str, rate: Rate) -> None:
        self._container, self._encoder, self._rate = container, encoder, rate
        self._stream: VideoStream | None = None
        self._last = -1

    def write(
        self, name: str, frame: Frame, prediction: Prediction, line: Mapping[str, Any]
    ) -> None:
        import av

        drawn = av.VideoFrame.from_ndarray(
            draw_prediction(frame.pixels, prediction), format="rgb24"
        )
        if self._stream is None:
            stream = self._container.add_stream(
                self._encoder, rate=Fraction(rate_of(self._rate)).limit_denominator(1001)
            )
            assert isinstance(stream, av.VideoStream)
            # Colours have half the resolution, so sides are even.
            stream.width, stream.height = max(2, drawn.width & ~1), max(2, drawn.height & ~1)
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = Fraction(1, _TICKS)
            self._stream = stream
        seconds = frame.index / rate_of(self._rate) if frame.seconds is None else frame.seconds
        at = max(self._last + 1, round(seconds * _TICKS))
        drawn.pts, drawn.time_base, self._last = at, Fraction(1, _TICKS), at
        fitted = drawn.reformat(self._stream.width, self._stream.height, "yuv420p")
        self._container.mux(self._stream.encode(fitted))

    def finish(self) -> None:
        """Encode what is left.

        Raises:
            _NoFrames: no frame was written.
        """
        if self._stream is None:
            raise _NoFrames
        self._container.mux(self._stream.encode())


@contextmanager
def _video(path: Path, container: str, rate: Rate) -> Iterator[FrameOutput]:
    check_pyav()
    import av

    encoder = next((name for name in _ENCODERS if name in av.codecs_available), None)
    if encoder is None:
        raise EnvironmentProblem(
            f"Cannot write {path}.",
            f"This FFmpeg has none of the encoders {', '.join(_ENCODERS)}.",
            "Install PyAV's own wheel: pip install --force-reinstall av, or write to a folder.",
        )
    with (
        suppress(_NoFrames),  # an older file stays as it was
        atomic_writer(path) as file,
        av.open(file, "w", format=container) as opened,
    ):
        video = _Video(opened, encoder, rate)
        yield video
        video.finish()


def check_times(path: Path | None, timed: bool) -> None:
    """Refuse a video of images, which have no time."""
    if path is not None and not timed and path.suffix.lower() in CONTAINERS:
        raise UsageError(
            f"{path} cannot be made of a folder.",
            "Its images have no time, and any size.",
            f"Name a folder for the pictures, or a {LINES_SUFFIX} file.",
        )
