"""Open regular files on POSIX and Windows, and cover their differences in locks and owners."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from capsedge.errors import UsageError
from capsedge.spec import limits

# --- Differences between POSIX and Windows ---

if sys.platform != "win32":
    import fcntl

_LEAST_SPACE = 64 << 10  # bytes left on a disk that counts as full
_FRESH = 600  # seconds for which a file written lately counts as in use, on Windows
RENAMES_OPEN_FILES = sys.platform != "win32"


def _flags(*names: str) -> int:
    """The flags that this system supports."""
    return sum(getattr(os, name, 0) for name in names)


# Without O_BINARY, Windows translates line ends.
READ = os.O_RDONLY | _flags("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | _flags("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY")


def lock(handle: int) -> None:
    """Tell `remove_unused` of other processes that a file is in use, until it is closed."""
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)


def try_lock(handle: int) -> bool:
    """Lock a file until it is closed; False if another process has locked it."""
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
    return True


def remove_unused(path: str) -> None:
    """Remove a file, but only a plain file that our user owns and no process has locked.

    Windows has no such locks. There, a file that is open cannot be removed, and one that was written lately
    may be about to be renamed.
    """
    if sys.platform == "win32":
        if time.time() - os.stat(path).st_mtime > _FRESH:
            os.unlink(path)
    else:
        handle = os.open(path, READ | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(handle)


def take_over(handle: int, older: os.stat_result) -> None:
    """Give an open file the owner, as far as we may, and the mode of an older one.

    On Windows, it inherits the rights of its folder.
    """
    if sys.platform != "win32":
        mode = older.st_mode & 0o777
        new = os.fstat(handle)
        with suppress(OSError):
            if new.st_gid != older.st_gid:
                os.fchown(handle, -1, older.st_gid)
            if new.st_uid != older.st_uid:
                os.fchown(handle, older.st_uid, -1)
        if os.fstat(handle).st_gid != older.st_gid:
            mode &= (
                ~0o070 | (mode & 0o007) << 3
            )  # another group gets no more rights than others had
        os.fchmod(handle, mode)


def is_full(folder: str) -> bool:
    """Whether the disk of a folder has no room for data or, on POSIX, for another file."""
    with suppress(OSError):
        if shutil.disk_usage(folder).free < _LEAST_SPACE:
            return True
        if sys.platform != "win32":
            status = os.statvfs(folder)
            return status.f_files > 0 and status.f_favail == 0
    return False


# --- Opening ---

FILE, FOLDER = "file", "folder"
_KINDS = (
    (stat.S_ISREG, FILE), (stat.S_ISDIR, FOLDER), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"),
)  # fmt: skip


@contextmanager
def open_regular_file(path: Path | str, fix: str = "Check the path.") -> Iterator[BufferedReader]:
    """A regular file, open for reading; never waits for another process to write."""
    with readable_errors(path, fix):
        # Checked before opening, since opening alone can wake a pipe's writer or move a device, and again
        # afterwards, since the name may refer to something else by then.
        _check_regular(path, os.stat(path).st_mode)
        handle = os.open(path, READ)
        with open(handle, "rb") as file:
            _check_regular(path, os.fstat(handle).st_mode)
            yield file


def path_kind(path: Path | str) -> str | None:
    """What is at a path: ``file``, ``folder``, ``pipe``, ``socket`` or ``device``; None for nothing."""
    with readable_errors(path):
        try:
            return _kind(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None


def file_size(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


@contextmanager
def readable_errors(path: Path | str, fix: str = "Check the path.") -> Iterator[None]:
    """Turn the block's failures to reach a path into readable errors."""
    try:
        os.fsencode(path)
        yield
    except FileNotFoundError as error:
        raise UsageError(f"Cannot read {path}.", "There is no such file.", fix) from error
    except OSError as error:
        raise UsageError(f"Cannot read {path}.", f"{error.strerror or error}.", fix) from error
    except ValueError as error:
        check_possible_path(path, error)
        raise


def check_possible_path(path: Path | str, error: ValueError) -> None:
    """Recognize a path that no file can have by the error that its use raised."""
    name = os.fspath(path)
    if "\0" in name or (isinstance(error, UnicodeEncodeError) and error.object == name):
        raise UsageError(
            f"No file can be named {name!a}.",
            "It contains a null byte." if "\0" in name else f"{error.reason}.",  # type: ignore[attr-defined]
            "Check the path.",
        ) from error


def _check_regular(path: Path | str, mode: int) -> None:
    kind = _kind(mode)
    if kind != FILE:
        raise UsageError(f"Cannot read {path}.", f"It is a {kind}.", "Pass a file.")


def _kind(mode: int) -> str:
    return next((name for is_one, name in _KINDS if is_one(mode)), "special file")


def list_folder(folder: Path | str) -> list[str]:
    """The names in a folder, sorted."""
    names: list[str] = []
    try:
        with (
            readable_errors(folder, "Choose a readable folder."),
            os.scandir(folder) as entries,
        ):
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
            raise UsageError(f"There is no folder {folder}.", "", "Pass a folder.") from error
        raise
    return sorted(names)
