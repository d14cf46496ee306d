"""Opening what is to be read: regular files and nothing else, with the reason in words where that fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from capsedge.errors import UsageError
from capsedge.runtime import limits

_OTHERS = (
    (stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"),
)  # fmt: skip


@contextmanager
def opened(path: Path | str, fix: str = "Check the path.") -> Iterator[BufferedReader]:
    """A regular file, open for reading; never waits for another process to write.

    Args:
        fix: what errors advise.

    Raises:
        UsageError: there is no such file, it is no regular one, or it cannot be opened or read.
    """
    if "\0" in os.fspath(path):
        raise UsageError(f"{os.fspath(path)!r} is no path.", "It has a null byte.", fix)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            os.close(handle)
            kind = next((name for is_one, name in _OTHERS if is_one(mode)), "special file")
            raise UsageError(f"{path} is not a file.", f"It is a {kind}.", "Name a file.")
        with open(handle, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {path}.", "", fix) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read.", f"{error.strerror or error}.", fix) from error


def size(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def listing(folder: Path | str) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        UsageError: it is no folder, cannot be read, or has too many.
    """
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > limits.FOLDER_FILES:
                    raise UsageError(
                        f"The folder {folder} has over {limits.FOLDER_FILES:,} files.",
                        "",
                        "Divide it, or store the images in npz files.",
                    )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"There is no folder {folder}.", "", "Name a folder.") from error
    except OSError as error:
        raise UsageError(
            f"The folder {folder} cannot be read.", f"{error.strerror}.", "Check its permissions."
        ) from error
    return sorted(names)
