"""Cameras, of which frames that a program makes take the place."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="cameras need PyAV: pip install 'capsedge[video]'")

import av

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.video import frame_sources as module
from capsedge.runtime.video.frame_sources import Camera
from capsedge.runtime.video.frames import camera_device
from capsedge.spec import limits
from tests.runtime.video.clips import number_of, numbered


class StandIn:
    """Gives numbered frames when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._more, self.taken = threading.Semaphore(0), threading.Semaphore(0)
        self.over = self.closed = False

    @contextmanager
    def opened(self, device: str) -> Iterator[Iterator[av.VideoFrame]]:
        assert device == "/dev/video0"
        yield self._frames()
        self.closed = True

    def _frames(self) -> Iterator[av.VideoFrame]:
        number = 0
        while self._more.acquire(timeout=30) and not self.over:
            yield av.VideoFrame.from_ndarray(numbered(number), format="rgb24")
            number += 1
            self.taken.release()
        if self._error is not None:
            raise self._error

    def give(self, count: int) -> None:
        """Let so many frames arrive, and wait until they have."""
        for _ in range(count):
            self._more.release()
            assert self.taken.acquire(timeout=30)

    def end(self) -> None:
        self.over = True
        self._more.release()


@pytest.fixture
def stand_in(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    one = StandIn(getattr(request, "param", None))
    yield one
    one.end()


def test_the_newest_frame_is_given_and_others_are_counted(stand_in: StandIn) -> None:
    camera = Camera(0, stand_in.opened)
    frames = iter(camera)
    threading.Timer(0, stand_in.give, [1]).start()
    first = next(frames)
    assert (first.index, number_of(first.pixels), first.seconds) == (0, 0, 0.0)
    stand_in.give(4)  # while the network works on the first
    second = next(frames)
    assert (second.index, number_of(second.pixels)) == (1, 4)
    assert second.seconds is not None
    assert second.seconds > 0
    assert camera.dropped == 3
    assert camera.rate is None


@pytest.mark.parametrize(
    ("stand_in", "what", "why"),
    [
        (None, "The camera /dev/video0 gives no picture.", "It gives no more frames: it was unplugged, or "
         "switched off."),
        (OSError(errno.ENODEV, "No such device"), "The camera /dev/video0 gives no picture.", "It was "
         "unplugged, or switched off."),
        (OSError(errno.EBUSY, "Busy"), "The camera /dev/video0 is busy.", "Another program uses it."),
        (OSError(errno.EACCES, "No"), "The camera /dev/video0 cannot be opened.", "You have no permission to "
         "read it."),
        (av.error.InvalidDataError(1094995529, "Invalid data"), "The camera /dev/video0 gives no picture.",
         "The driver reports: Invalid data."),
    ],
    indirect=["stand_in"],
)  # fmt: skip
def test_a_camera_that_fails_says_why(stand_in: StandIn, what: str, why: str) -> None:
    frames = iter(Camera(0, stand_in.opened))
    threading.Timer(0, stand_in.give, [1]).start()
    assert next(frames).index == 0
    stand_in.end()
    with pytest.raises(EnvironmentProblem) as caught:
        next(frames)
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.fix


def test_a_camera_that_stays_silent(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CAMERA_SECONDS", 0.05)
    with pytest.raises(EnvironmentProblem, match=r"No frame came for 0\.05 seconds"):
        next(iter(Camera(0, stand_in.opened)))


def test_the_camera_is_closed_with_the_iteration(stand_in: StandIn) -> None:
    frames = iter(Camera(0, stand_in.opened))
    threading.Timer(0, stand_in.give, [1]).start()
    next(frames)
    frames.close()  # type: ignore[attr-defined]
    stand_in._more.release()  # the driver's next frame lets the thread look
    for thread in threading.enumerate():
        if thread.name == "camera":
            thread.join(30)
    assert stand_in.closed


def test_a_stream_of_predictions(stand_in: StandIn) -> None:
    import capsedge

    with capsedge.load() as session:
        stream = session.stream(Camera(0, stand_in.opened))
        threading.Timer(0, stand_in.give, [1]).start()
        assert np.array_equal(next(stream).scores, session.predict(numbered(0))[0].scores)
        stand_in.give(2)
        assert np.array_equal(next(stream).scores, session.predict(numbered(2))[0].scores)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_have_no_cameras(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(EnvironmentProblem, match="Cameras cannot be read on this system"):
        next(iter(Camera(0)))


def test_there_is_no_such_camera() -> None:
    with pytest.raises(UsageError, match="There is no camera /dev/video999"):
        next(iter(Camera(999)))
    with pytest.raises(UsageError, match=r"clip\.mp4 is not a camera"):
        Camera("clip.mp4")


def test_what_is_no_camera_of_video4linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg's own opener, on a file: its error is passed on."""
    path = tmp_path / "video0"
    path.write_bytes(b"no device")
    frames = iter(Camera(0, lambda _: module.video4linux(str(path))))
    with pytest.raises(EnvironmentProblem, match="The camera /dev/video0"):
        next(frames)


def test_names_of_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named: Callable[[str], str | None] = camera_device
    assert [named(n) for n in ("0", "12", "/dev/video3", "./0", "1.png", "/dev/null", "-")] == [
        "/dev/video0", "/dev/video12", "/dev/video3", None, None, None, None
    ]  # fmt: skip
    Path("0").write_bytes(b"a file of that name")
    assert named("0") is None
