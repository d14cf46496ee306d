"""Opening files for reading: only regular files, with the reason in words where that fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from capsedge.errors import UsageError
from capsedge.runtime.files import limits, system

FILE, FOLDER = "file", "folder"
_KINDS = (
    (stat.S_ISREG, FILE), (stat.S_ISDIR, FOLDER), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"),
)  # fmt: skip


@contextmanager
def opened(path: Path | str, fix: str = "Check the path.") -> Iterator[BufferedReader]:
    """A regular file, open for reading; never waits for another process to write.

    Args:
        fix: the advice that errors give.

    Raises:
        UsageError: the file does not exist, is not a regular file, or cannot be opened or read.
    """
    with explained(path, fix):
        # Checked before opening, since opening alone can wake a pipe's writer or move a device, and again
        # afterwards, since the name may refer to something else by then.
        _check_regular(path, os.stat(path).st_mode)
        handle = os.open(path, system.READ)
        with open(handle, "rb") as file:
            _check_regular(path, os.fstat(handle).st_mode)
            yield file


def kind(path: Path | str) -> str | None:
    """What a path leads to: ``file``, ``folder``, ``pipe``, ``socket`` or ``device``; None for nothing.

    Raises:
        UsageError: the system refuses to tell, for instance below a folder that may not be searched.
    """
    with explained(path):
        try:
            return _kind(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None


def size(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def explained(path: Path | str, fix: str = "Check the path.") -> Iterator[None]:
    """Turn the block's failures to reach a path into readable errors.

    Raises:
        UsageError: the system refused access.
    """
    try:
        os.fsencode(path)
        yield
    except FileNotFoundError as error:
        raise UsageError(f"Cannot read {path}.", "There is no such file.", fix) from error
    except OSError as error:
        raise UsageError(f"Cannot read {path}.", f"{error.strerror or error}.", fix) from error
    except ValueError as error:
        check_name(path, error)
        raise


def check_name(path: Path | str, error: ValueError) -> None:
    """Recognize a path that no file can have by the error that its use raised.

    Raises:
        UsageError: no file can have this path.
    """
    name = os.fspath(path)
    if "\0" in name or (isinstance(error, UnicodeEncodeError) and error.object == name):
        raise UsageError(
            f"No file can be named {name!a}.",
            "It contains a null byte." if "\0" in name else f"{error.reason}.",  # type: ignore[attr-defined]
            "Check the path.",
        ) from error


def _check_regular(path: Path | str, mode: int) -> None:
    found = _kind(mode)
    if found != FILE:
        raise UsageError(f"Cannot read {path}.", f"It is a {found}.", "Name a file.")


def _kind(mode: int) -> str:
    return next((name for is_one, name in _KINDS if is_one(mode)), "special file")


def listing(folder: Path | str) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        UsageError: it is not a folder, cannot be read, or contains too many files.
    """
    names: list[str] = []
    try:
        with explained(folder, "Name a folder that may be read."), os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > limits.FOLDER_FILES:
                    raise UsageError(
                        f"The folder {folder} has over {limits.FOLDER_FILES:,} files.",
                        "",
                        "Divide it, or store the images in npz files.",
                    )
    except UsageError as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            raise UsageError(f"There is no folder {folder}.", "", "Name a folder.") from error
        raise
    return sorted(names)
