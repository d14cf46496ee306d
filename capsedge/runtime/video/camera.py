"""Cameras, through Video4Linux. Never run on a camera: tested with frames that a program makes."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.video.frames import Frame, camera_device, check_pyav
from capsedge.spec import limits

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    Opened = Callable[[str], AbstractContextManager[Iterable[VideoFrame]]]


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
