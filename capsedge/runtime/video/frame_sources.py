"""Read moving pictures: video files, in a sandbox; cameras, by Video4Linux; watched folders."""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.files.formats import identify_path
from capsedge.runtime.files.reading import open_regular_file
from capsedge.runtime.files.sandbox import SandboxLimits, SandboxStream, stream_from_sandbox
from capsedge.runtime.images.headers import is_image_name
from capsedge.runtime.video import decoding_worker as worker
from capsedge.runtime.video.frames import Frame, camera_device, check_pyav
from capsedge.spec import limits

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    Opened = Callable[[str], AbstractContextManager[Iterable[VideoFrame]]]


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
            known = identify_path(self.path)
            return UsageError(
                f"{self.path} cannot be read as a video.",
                why if known is None else f"{why} The file is {known.name}.",
                "Get the file again, or convert it: ffmpeg -i FILE new.mp4",
            )
        return UsageError(
            f"{self.path} cannot be read beyond frame {count - 1}.",
            why,
            "The frames before were used. Get the file again.",
        )


_POLL = 0.2  # seconds between two looks; a file is complete when two looks find it unchanged


class WatchedFolder:
    """The images of a folder, sorted by name, and then every new one as it arrives, without end.

    A file is given once it has not changed for a fifth of a second, and again if it changes later. Programs
    that write slowly should write under another name, such as ``*.part``, and rename.

    Args:
        folder: the folder; its subfolders are not searched.

    Raises:
        UsageError: while iterating: the folder cannot be read, or vanishes.

    Example:
        >>> with capsedge.load("model.onnx") as session:
        ...     for prediction in session.stream(capsedge.WatchedFolder("arriving")):
        ...         print(prediction)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if reading.path_kind(self.folder) != reading.FOLDER:
            raise UsageError(
                f"{folder} cannot be watched.", "It is not a folder.", "Name a folder."
            )

    def __iter__(self) -> Iterator[Path]:
        given: dict[str, tuple[int, int]] = {}
        before: dict[str, tuple[int, int]] | None = None
        while True:
            now = self._look()
            given = {name: state for name, state in given.items() if name in now}
            for name, state in now.items():
                # What is there at the start is taken as it is.
                if given.get(name) != state and (before is None or before.get(name) == state):
                    given[name] = state
                    yield self.folder / name
            before = now
            time.sleep(_POLL)

    def _look(self) -> dict[str, tuple[int, int]]:
        """Time of the last change and size of every image."""
        found = {}
        for name in reading.list_folder(self.folder):
            if is_image_name(name):
                try:
                    status = os.stat(self.folder / name)
                except OSError:  # gone in the meantime
                    continue
                found[name] = status.st_mtime_ns, status.st_size
        return found


@contextmanager
def video4linux(device: str) -> Iterator[Iterator[VideoFrame]]:
    """The frames of a camera of this machine, as they arrive."""
    import av

    with av.open(device, format="v4l2") as container:
        yield container.decode(video=0)


class Camera:
    """The frames of a camera: every time the newest, and those in between are dropped.

    The camera is read in a thread, until the iteration ends or is closed.

    Args:
        device: ``/dev/video0``, or its number, ``0``.
        opened: opens the device; anything that gives frames of PyAV can stand in for a camera.

    Raises:
        UsageError: it is not the name of a camera; while iterating: there is no such camera.
        EnvironmentProblem: while iterating: the camera is busy, gives no picture, or has vanished; PyAV is
            missing; or the system has no Video4Linux (Windows, macOS).

    Example:
        >>> with capsedge.load("model.onnx") as session:
        ...     for prediction in session.stream(capsedge.Camera("/dev/video0")):
        ...         print(prediction)
    """

    def __init__(self, device: str | int = "/dev/video0", opened: Opened | None = None) -> None:
        name = camera_device(str(device))
        if opened is None and name is None:
            raise UsageError(
                f"{device} is not a camera.", "Cameras are /dev/video0, /dev/video1, ...", ""
            )
        self.device = name or str(device)
        self._opened = opened
        self._dropped = 0

    @property
    def rate(self) -> float | None:
        """Always None: frames are timed as they arrive."""
        return None

    @property
    def dropped(self) -> int:
        """Frames of the last iteration that were passed over because newer ones had arrived."""
        return self._dropped

    def __iter__(self) -> Iterator[Frame]:
        check_pyav()
        if self._opened is None:
            _check_system(self.device, sys.platform)
        reader = _CameraThread(self.device, self._opened or video4linux)
        try:
            count = 0
            while (newest := reader.newest()) is not None:
                self._dropped = reader.dropped
                frame, arrived = newest
                started = time.perf_counter()
                pixels = frame.to_ndarray(format="rgb24")
                yield Frame(pixels, count, arrived, time.perf_counter() - started)
                count += 1
        finally:
            reader.stop()


class _CameraThread:
    """Reads a camera in a thread, and holds its newest frame."""

    def __init__(self, device: str, opened: Opened) -> None:
        self._device, self._opened = device, opened
        self._changed = threading.Condition()
        self._newest: tuple[VideoFrame, float] | None = None
        self._error: BaseException | None = None
        self._over = self._stopped = False
        self.dropped = 0
        threading.Thread(target=self._read, name="camera", daemon=True).start()

    def newest(self) -> tuple[VideoFrame, float] | None:
        """The next frame that was not given yet, with the seconds since the first; None if stopped."""
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: self._newest is not None or self._over, limits.CAMERA_SECONDS
            )
            newest, self._newest = self._newest, None
            if newest is not None or self._stopped:
                return newest
            if not arrived:
                raise self._failed(f"No frame came for {limits.CAMERA_SECONDS} seconds.")
            raise self._problem(self._error)

    def stop(self) -> None:
        """Let the thread end with its next frame."""
        with self._changed:
            self._stopped = True

    def _read(self) -> None:
        start = None
        try:
            with self._opened(self._device) as frames:
                for frame in frames:
                    now = time.monotonic()
                    start = now if start is None else start
                    with self._changed:
                        if self._stopped:
                            return
                        self.dropped += self._newest is not None
                        self._newest = frame, now - start
                        self._changed.notify()
        except Exception as error:  # a driver's; it is raised where the frames are read
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()

    def _problem(self, error: BaseException | None) -> CapsedgeError:
        if error is None:
            return self._failed("It gives no more frames: it was unplugged, or switched off.")
        number = getattr(error, "errno", None)
        if number == errno.EBUSY:
            return EnvironmentProblem(
                f"The camera {self._device} is busy.",
                "Another program uses it.",
                f"End that program; `fuser {self._device}` names it.",
            )
        if number in (errno.EACCES, errno.EPERM):
            return EnvironmentProblem(
                f"The camera {self._device} cannot be opened.",
                "You have no permission to read it.",
                "Join the group of its device: sudo usermod -aG video $USER, then log in again.",
            )
        if number in (errno.ENODEV, errno.EIO, errno.ENXIO):
            return self._failed("It was unplugged, or switched off.")
        return self._failed(f"The driver reports: {getattr(error, 'strerror', None) or error}.")

    def _failed(self, why: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"The camera {self._device} gives no picture.", why, "Plug it in again, and start anew."
        )


def _check_system(device: str, system: str) -> None:
    """Refuse where there are no such cameras."""
    if system != "linux":
        raise EnvironmentProblem(
            "Cameras cannot be read on this system.",
            "They are read through Video4Linux, which is Linux's.",
            "Record a video and name the file, or pass the frames of another library to Session.stream.",
        )
    if not Path(device).exists():
        found = sorted(str(path) for path in Path("/dev").glob("video[0-9]*"))
        raise UsageError(
            f"There is no camera {device}.",
            f"This machine has {', '.join(found) or 'no camera'}.",
            "Name one of these." if found else "Plug one in, or name a video file.",
        )
