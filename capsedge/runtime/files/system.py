"""What POSIX and Windows do differently with files: flags, locks, owners, replacing a file that is open."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from contextlib import suppress

if sys.platform != "win32":
    import fcntl

_LEAST_SPACE = 64 << 10  # bytes left on a disk that counts as full
_FRESH = 600  # seconds in which a file may still be in use where nothing tells
RENAMES_OPEN_FILES = sys.platform != "win32"


def _flags(*names: str) -> int:
    """Those of the flags that the system has."""
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
    """Remove a plain file of our own user that no process has locked, and no other.

    Windows has no such locks. There, a file that is open cannot be removed, and one that was written lately
    may be about to be renamed.

    Raises:
        OSError: it is locked or open, or cannot be removed.
    """
    if sys.platform == "win32":
        if time.time() - os.stat(path).st_mtime > _FRESH:
            os.unlink(path)
    else:
        handle = os.open(path, READ | os.O_NOFOLLOW)
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(handle)


def take_over(handle: int, older: os.stat_result) -> None:
    """Give an open file the owner, as far as we may, and the mode of an older one.

    On Windows, it has the rights that its folder hands down.
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
            found = os.statvfs(folder)
            return found.f_files > 0 and found.f_favail == 0
    return False
