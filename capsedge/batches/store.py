"""The folder that the parts of a table are written to: on this machine, or at an address of fsspec."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from capsedge.batches.storage import Storage, is_remote, plain
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import opening, system
from capsedge.runtime.files.writing import make_folder, write_bytes

_LOCK = "_lock"


class Store:
    """A folder of files, each of which is written completely or not at all.

    Args:
        address: the folder, which need not exist.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._remote = Storage(address) if is_remote(address) else None
        self._folder = Path(plain(address))
        self._lock = -1

    def names(self) -> set[str]:
        """The files that are there."""
        if self._remote is not None:
            return set(self._remote.names()) if self._remote.kind() == opening.FOLDER else set()
        if opening.kind(self._folder) is None:
            return set()
        return {*opening.listing(self._folder)} - {_LOCK}

    def take(self) -> None:
        """Create the folder, and keep other processes from it until `release`.

        Raises:
            UsageError: another process writes to it, or it cannot be created.
        """
        if self._remote is not None:
            return  # object stores have neither folders nor locks
        make_folder(self._folder)
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if not system.try_lock(self._lock):
            self.release()
            raise UsageError(
                f"Another run writes to {self.address}.", "", "Wait for it, or name another output."
            )

    def release(self) -> None:
        """Let other processes write; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def put(self, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            UsageError, EnvironmentProblem: it cannot be written.
        """
        if self._remote is None:
            write_bytes(self._folder / name, content)
            return
        with self._failing(f"Writing {name} to"):
            fs, path = self._remote.system
            fs.pipe_file(f"{path.rstrip('/')}/{name}", content)

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file, open for reading.

        Raises:
            UsageError: it cannot be opened.
        """
        if self._remote is None:
            with opening.opened(self._folder / name) as file:
                yield file
        else:
            with self._remote.opened(name) as remote:
                yield remote

    def get(self, name: str, most: int) -> bytes:
        """The content of a file; of one with more than ``most`` bytes, so many and one more.

        Raises:
            UsageError: it cannot be read.
        """
        with self.opened(name) as file:
            return file.read(most + 1)

    def clear(self, names: Iterable[str]) -> None:
        """Remove files.

        Raises:
            UsageError, EnvironmentProblem: they cannot be removed.
        """
        for name in sorted(names):
            if self._remote is None:
                with opening.explained(self._folder / name, "Check the rights to it."):
                    (self._folder / name).unlink()
                continue
            fs, path = self._remote.system
            with self._failing(f"Removing {name} from"):
                fs.rm_file(f"{path.rstrip('/')}/{name}")

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn a file system's failures into readable errors.

        Raises:
            EnvironmentProblem: the block failed.
        """
        try:
            yield
        except Exception as error:  # every file system has errors of its own
            raise EnvironmentProblem(
                f"{what} {self.address} failed.",
                f"{type(error).__name__}: {error}.",
                "Check the address and the rights to it, then continue with --resume.",
            ) from error

    def unlock_file(self) -> None:
        """Remove the mark of the lock from a folder that stays."""
        if self._remote is None:
            (self._folder / _LOCK).unlink(missing_ok=True)
        self.release()

    def remove(self) -> None:
        """Remove a folder on this machine; an address is left as it is."""
        self.release()
        if self._remote is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def apart(output: str, source: str) -> bool:
    """Whether an output lies outside of a source."""
    a, b = (_normal(address) for address in (output, source))
    return a != b and not a.startswith(b.rstrip("/") + "/")


def _normal(address: str) -> str:
    if is_remote(address):
        return address.rstrip("/")
    return str(os.path.realpath(Storage(address).local()))
