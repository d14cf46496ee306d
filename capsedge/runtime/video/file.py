"""Video files, decoded in a sandbox."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files.reading import open_regular_file
from capsedge.runtime.files.sandbox import SandboxLimits, SandboxStream, stream_from_sandbox
from capsedge.runtime.video import decoding_worker as worker
from capsedge.runtime.video.frames import Frame, check_pyav
from capsedge.spec import limits

_LIMITS = SandboxLimits(limits.VIDEO_SECONDS // 4, limits.VIDEO_MEMORY, limits.MIB)


class VideoFile:
    """The frames of a video file, in order; every iteration decodes it from its start.

    FFmpeg decodes in a process of its own, which can open no other file, with limits on pixels, frames, time
    and memory (docs/reference/limits.md). It is one frame ahead, so memory does not grow with the video.
    Frames are turned upright, and converted to RGB by the matrix and the range that the file states; where it
    states none, by BT.709 from 720 lines on, otherwise by BT.601, and by the limited range.

    Args:
        path: the file: MP4, MOV, Matroska, WebM, AVI, MPEG, Ogg.

    Raises:
        UsageError: while iterating: the file cannot be read, has no frames, or is damaged; then the frames
            before the damage were given.
        EnvironmentProblem: PyAV is missing: ``pip install 'capsedge[video]'``.

    Example:
        >>> with capsedge.load("model.onnx") as session:
        ...     for prediction in session.stream(capsedge.VideoFile("clip.mp4")):
        ...         print(prediction)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._rate: float | None = None

    @property
    def rate(self) -> float | None:
        """Frames per second, on average; None before the first frame, and if the file does not tell."""
        return self._rate

    @property
    def dropped(self) -> int:
        """Always 0: every frame of a file is given."""
        return 0

    def __iter__(self) -> Iterator[Frame]:
        check_pyav()
        with (
            open_regular_file(self.path, "Name a video that may be read.") as file,
            stream_from_sandbox(
                worker.__name__, file, _LIMITS, limits.VIDEO_FRAME_SECONDS
            ) as stream,
        ):
            yield from self._frames(stream)

    def _frames(self, stream: SandboxStream) -> Iterator[Frame]:
        header = bytearray(worker.HEADER.size)
        count = 0
        while True:
            if not stream.fill(memoryview(header)):
                raise self._broken(stream, count)
            kind, first, second, third, moment, spent = worker.HEADER.unpack(header)
            if kind == worker.STREAM:
                self._rate = moment if math.isfinite(moment) and moment > 0 else None
            elif kind == worker.PICTURE and self._fits(first, second):
                if count == limits.VIDEO_FRAMES:
                    raise self._damaged(f"It has over {count:,} frames.", count)
                pixels = np.empty((second, first, 3), np.uint8)
                if not stream.fill(memoryview(pixels.data).cast("B")):
                    raise self._broken(stream, count)
                upright = np.rot90(pixels, third % 4) if third % 4 else pixels
                seconds = moment if math.isfinite(moment) else None
                yield Frame(np.ascontiguousarray(upright), count, seconds, spent)
                count += 1
            elif kind == worker.END:
                return
            else:
                raise self._refused(stream, kind, first, count)

    def _fits(self, width: int, height: int) -> bool:
        """Whether the size is within the limits: the process may be under the control of the file."""
        sides = min(width, height) > 0 and max(width, height) <= limits.IMAGE_SIDE
        return sides and width * height <= limits.VIDEO_PIXELS

    def _refused(
        self, stream: SandboxStream, kind: bytes, size: int, count: int
    ) -> UsageError | EnvironmentProblem:
        """The error for a refusal of the process, whose text follows."""
        text = bytearray(min(size, 500))
        if kind not in (worker.REFUSED, worker.LACKING) or not stream.fill(memoryview(text)):
            return self._broken(stream, count)
        reason = text.decode(errors="replace")
        if kind == worker.LACKING:
            return EnvironmentProblem(
                "PyAV cannot be used.", f"{reason}.", "pip install --force-reinstall av"
            )
        return self._damaged(f"{reason[:1].upper()}{reason[1:]}.", count)

    def _broken(self, stream: SandboxStream, count: int) -> UsageError:
        """The error for a process that ended without saying why."""
        if stream.late:
            return self._damaged(
                f"Its next frame took over {limits.VIDEO_FRAME_SECONDS} seconds.", count
            )
        code, _ = stream.ended()
        return self._damaged(f"The decoder ended unexpectedly (exit code {code}).", count)

    def _damaged(self, why: str, count: int) -> UsageError:
        if not count:
            return UsageError(
                f"{self.path} cannot be read as a video.",
                why,
                "Get the file again, or convert it: ffmpeg -i FILE new.mp4",
            )
        return UsageError(
            f"{self.path} cannot be read beyond frame {count - 1}.",
            why,
            "The frames before were used. Get the file again.",
        )
