"""A watched folder gives every image once, when it is complete."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from capsedge.errors import UsageError
from capsedge.runtime.video import frame_sources
from capsedge.runtime.video.frame_sources import WatchedFolder


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What happens between two looks, instead of a pause."""
    steps: list[object] = []

    def pause(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        step = steps.pop(0)
        if callable(step):
            step()

    monkeypatch.setattr(frame_sources.time, "sleep", pause)
    return steps


def names(folder: Path) -> list[str]:
    found = []
    with suppress(KeyboardInterrupt):
        for path in WatchedFolder(folder):
            found.append(path.name)
    return found


def test_images_are_given_once(tmp_path: Path, looks: list[object]) -> None:
    for name in ("b.png", "a.jpg", "notes.txt", ".hidden.png"):
        (tmp_path / name).write_bytes(b"1")
    looks += [lambda: (tmp_path / "c.png").write_bytes(b"1"), None, None]
    assert names(tmp_path) == ["a.jpg", "b.png", "c.png"]


def test_a_file_that_grows_is_given_when_it_rests(tmp_path: Path, looks: list[object]) -> None:
    def grow() -> None:
        with (tmp_path / "a.png").open("ab") as file:
            file.write(b"more")
        given.append("grown")

    given: list[str] = []
    looks += [grow, grow, grow, None, None]
    with suppress(KeyboardInterrupt):
        for path in WatchedFolder(tmp_path):
            given.append(path.name)
    assert given == ["grown", "grown", "grown", "a.png"]


def test_a_file_that_changes_is_given_again(tmp_path: Path, looks: list[object]) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"1")
    looks += [lambda: os.utime(path, (0, 0)), None, path.unlink, None,
              lambda: path.write_bytes(b"22"), None]  # fmt: skip
    assert names(tmp_path) == ["a.png"] * 3


def test_a_folder_that_vanishes(tmp_path: Path, looks: list[object]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    looks += [lambda: shutil.rmtree(folder)]
    with pytest.raises(UsageError, match="There is no folder"):
        list(WatchedFolder(folder))


def test_only_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="It is not a folder"):
        WatchedFolder(tmp_path / "missing")
