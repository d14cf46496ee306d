"""Write a moving picture with its predictions: a video, pictures in a folder, or lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import atomic_writer, make_folder, write_bytes
from capsedge.runtime.session.masks import overlaid, picture_png
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.video.frames import Frame, check_pyav

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream
    from PIL.ImageFont import FreeTypeFont, ImageFont


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


_SHARE = 24  # a line of text is this part of the height of the frame
_LEAST = 10  # pixels of the height of a line
_LINES = 6  # drawn at most
_INK, _GROUND = (255, 255, 255), (0, 0, 0, 160)


def draw_prediction(pixels: NDArray[Any], prediction: Prediction) -> NDArray[np.uint8]:
    """A frame with what was predicted: labels with their scores, values, or the colours of a mask.

    Args:
        pixels: of a video ``[H, W, 3]`` uint8, RGB; of an image, as `read_image` returns them.

    Returns:
        A new frame of the same size, ``[H, W, 3]`` uint8.
    """
    from PIL import Image, ImageDraw

    coloured = _coloured(pixels)
    if prediction.mask is not None:
        coloured = overlaid(coloured, prediction.mask)
    picture = Image.fromarray(coloured)
    lines = texts(prediction)
    if lines:
        size = max(_LEAST, picture.height // _SHARE)
        margin, font, text = size // 3, _font(size), "\n".join(lines)
        _, _, right, below = ImageDraw.Draw(picture).multiline_textbbox(
            (margin, margin), text, font=font
        )
        corner = (0, 0, int(right) + margin, int(below) + margin)
        layer = Image.new("RGBA", corner[2:], _GROUND)
        ImageDraw.Draw(layer).multiline_text((margin, margin), text, fill=_INK, font=font)
        under = picture.crop(corner).convert("RGBA")
        picture.paste(Image.alpha_composite(under, layer).convert("RGB"))
    return np.array(picture)


@lru_cache(maxsize=8)
def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def texts(prediction: Prediction) -> list[str]:
    """What is written on the frame, line by line."""
    lines = [str(value) for value in prediction.values]
    lines += [f"{label.name} {label.score:.2f}" for label in prediction.labels]
    lines += [f"{area.name} {area.share:.0%}" for area in prediction.areas if area.pixels]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"and {len(lines) - _LINES + 1} more"]
    return [*lines, "nothing to see"] if prediction.atypical else lines


def _coloured(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels ``[H, W, C]`` as RGB; what is transparent is black, as for the model."""
    values = pixels // 257 if pixels.dtype == np.uint16 else pixels
    if values.shape[-1] in (2, 4):
        values = values[..., :-1] * (values[..., -1:] / 255)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)), np.uint8)
