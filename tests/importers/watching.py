"""Whether anything opens a file: the kernel tells (inotify)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENED = 0x20


class Watch:
    """Says whether a file was opened since the watch began."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self._handle, os.fsencode(path), _OPENED) >= 0

    def opened(self) -> bool:
        """Whether it was opened."""
        try:
            return bool(os.read(self._handle, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """End the watch."""
        os.close(self._handle)


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    """Watch a file while the block runs."""
    watch = Watch(path)
    yield watch
    watch.close()
