"""One frame of a video or a camera, and the names that mean a moving picture."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.errors import EnvironmentProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

VIDEO_SUFFIXES = (
    ".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame. `Session.predict` and `Session.stream` take it as any other image.

    Attributes:
        pixels: ``[H, W, 3]`` uint8, RGB, upright; of an image in a folder, as its file holds them.
        index: its number, from 0. Of a camera, dropped frames are not counted.
        seconds: when it is shown, from the start of the video; of a camera, when it arrived, from the first
            frame on. None if the file does not state it.
        decoding: seconds that decoding it took, conversion to RGB included.
    """

    pixels: NDArray[Any]
    index: int
    seconds: float | None
    decoding: float = 0.0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.pixels if dtype is None else self.pixels.astype(dtype)


def is_video(name: Path) -> bool:
    """Whether a file is a video, by its name."""
    return name.suffix.lower() in VIDEO_SUFFIXES


def camera_device(name: Path | str) -> str | None:
    """The device of a camera, for ``/dev/video0`` and for its number alone, ``0``; None for other names."""
    text = os.fspath(name)
    if re.fullmatch("[0-9]{1,3}", text) and not os.path.exists(text):
        return f"/dev/video{int(text)}"
    return text if re.fullmatch("/dev/video[0-9]{1,3}", text) else None


def is_moving(images: Sequence[Path], watch: bool) -> bool:
    """Whether arguments name a moving picture."""
    return watch or any(camera_device(image) or is_video(image) for image in images)


def check_pyav() -> None:
    """Raise an EnvironmentProblem if PyAV is missing; it is not imported."""
    if find_spec("av") is None:
        raise EnvironmentProblem(
            "Videos and cameras need PyAV.",
            "No module named 'av'.",
            "pip install 'capsedge[video]'",
        )
