"""Read sources from this machine or any fsspec file system, and write tables there.

https://filesystem-spec.readthedocs.io. An address is one scheme and one path: chains of file systems
(``::``), which would unpack archives on the way, are refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.files.writing import make_folder, write_bytes
from capsedge.spec import limits

# --- Sources ---

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Packages that provide fsspec file systems, by scheme.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}
INSTALL = "pip install 'capsedge[batch]'"


def is_remote(address: str) -> bool:
    """Whether an address is on a file system other than this machine's."""
    scheme = _SCHEME.match(address)
    return scheme is not None and scheme[1].lower() not in ("file", "local")


def plain(address: str) -> str:
    """The path in an address of this machine's files, such as ``file:///photos``; any other unchanged."""
    scheme = _SCHEME.match(address)
    return address if scheme is None or is_remote(address) else unquote(address[scheme.end() :])


class Storage:
    """A file, or a folder with its contents, read through relative names.

    Args:
        address: a path, or ``scheme://path``.

    Raises:
        UsageError: the address cannot be read.
    """

    def __init__(self, address: str) -> None:
        if address.startswith("pipe:") or "::" in address:
            raise UsageError(
                f"{address} cannot be used as a source.",
                "Sources cannot be commands or chained file systems.",
                "Pass a file, a folder, or one address such as s3://bucket/folder.",
            )
        self.address = address
        self.remote = is_remote(address)
        self._path = plain(address)

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.address,)

    @cached_property
    def system(self) -> tuple[Any, str]:
        """The file system and the path in it."""
        scheme = self.address.partition(":")[0]
        try:
            import fsspec
        except ImportError as error:
            raise EnvironmentProblem(
                f"{self.address} needs fsspec.", f"{error}.", INSTALL
            ) from error
        try:
            system, path = fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            package = _PACKAGES.get(scheme.lower(), "the package that the message names")
            raise EnvironmentProblem(
                f"{scheme}:// addresses need another package.",
                f"{error}.",
                f"pip install {package}" if " " not in package else f"Install {package}.",
            ) from error
        except Exception as error:  # every file system has errors of its own
            raise UsageError(
                f"{self.address} is not a supported address.", f"{error}.", "Check it."
            ) from error
        return system, path

    @contextmanager
    def _reached(self, name: str) -> Iterator[None]:
        """Turn a file system's failures into readable errors."""
        try:
            yield
        except UsageError:
            raise
        except FileNotFoundError as error:
            raise UsageError(
                f"Cannot read {name or self.address}.",
                "There is no such file.",
                "Check the address.",
            ) from error
        except Exception as error:  # every file system has errors of its own
            raise UsageError(
                f"Cannot read {name or self.address}.",
                f"{type(error).__name__}: {error}.",
                "Check the address and your access rights.",
            ) from error

    def kind(self) -> str | None:
        """The kind of what is there: ``file`` or ``folder``; None for nothing."""
        if not self.remote:
            kind = reading.path_kind(self._path)
            if kind not in (None, reading.FILE, reading.FOLDER):
                raise UsageError(
                    f"Cannot read {self.address}.", f"It is a {kind}.", "Pass a file or a folder."
                )
            return kind
        system, path = self.system
        with self._reached(""):
            if not system.exists(path):
                return None
            return reading.FOLDER if system.isdir(path) else reading.FILE

    def names(self) -> list[str]:
        """The files below the folder, relative, with ``/`` between names, sorted."""
        names: list[str] = []
        for name in self._listed():
            names.append(name)
            if len(names) > limits.FOLDER_FILES:
                raise UsageError(
                    f"The folder {self.address} has over {limits.FOLDER_FILES:,} files.",
                    "",
                    "Divide it, or store the images in tar or parquet files.",
                )
        return sorted(names)

    def _listed(self) -> Iterator[str]:
        if self.remote:
            system, path = self.system
            with self._reached(""):
                files = system.find(path)
            root = path.rstrip("/") + "/"
            yield from (str(file).removeprefix(root) for file in files)
            return

        def failed(error: OSError) -> None:
            with reading.readable_errors(error.filename or self._path):
                raise error

        for folder, _, files in os.walk(self._path, onerror=failed):
            inner = os.path.relpath(folder, self._path)
            prefix = "" if inner == "." else inner.replace(os.sep, "/") + "/"
            yield from (prefix + file for file in files)

    @contextmanager
    def opened(self, name: str = "") -> Iterator[BinaryIO]:
        """A file below the folder, or the place itself for ``""``, open for reading at any position."""
        if not self.remote:
            with reading.open_regular_file(self.local(name)) as file:
                yield file
            return
        system, path = self.system
        with self._reached(name):
            remote = system.open(f"{path.rstrip('/')}/{name}" if name else path, "rb")
        with remote:
            yield cast(BinaryIO, remote)

    def local(self, name: str = "") -> Path:
        """The path of a file on this machine."""
        return Path(self._path, name) if name else Path(self._path)

    def size(self, name: str = "") -> int:
        """Bytes of a file. Raises UsageError if it cannot be opened."""
        with self.opened(name) as file, self._reached(name):
            return file.seek(0, os.SEEK_END)

    def start(self, count: int, name: str = "") -> bytes:
        """The first bytes of a file. Raises UsageError if it cannot be read."""
        with self.opened(name) as file, self._reached(name):
            return file.read(count)


# --- The folder that the parts of a table are written to ---

_LOCK = "_lock"


class PartStore:
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
            return set(self._remote.names()) if self._remote.kind() == reading.FOLDER else set()
        if reading.path_kind(self._folder) is None:
            return set()
        return {*reading.list_folder(self._folder)} - {_LOCK}

    def take(self) -> None:
        """Create the folder, and lock it against other processes until `release`."""
        if self._remote is not None:
            return  # object stores have neither folders nor locks
        make_folder(self._folder)
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if not reading.try_lock(self._lock):
            self.release()
            raise UsageError(
                f"Another run is writing to {self.address}.",
                "",
                "Wait for it to finish, or choose another output.",
            )

    def release(self) -> None:
        """Let other processes write; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def put(self, name: str, content: bytes) -> None:
        """Write a file. Raises UsageError or EnvironmentProblem if it cannot be written."""
        if self._remote is None:
            write_bytes(self._folder / name, content)
            return
        with self._failing(f"Writing {name} to"):
            fs, path = self._remote.system
            fs.pipe_file(f"{path.rstrip('/')}/{name}", content)

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file, open for reading. Raises UsageError if it cannot be opened."""
        if self._remote is None:
            with reading.open_regular_file(self._folder / name) as file:
                yield file
        else:
            with self._remote.opened(name) as remote:
                yield remote

    def get(self, name: str, most: int) -> bytes:
        """The content of a file; for a larger file, the first ``most`` bytes and one more."""
        with self.opened(name) as file:
            return file.read(most + 1)

    def clear(self, names: Iterable[str]) -> None:
        """Remove files. Raises UsageError or EnvironmentProblem if they cannot be removed."""
        for name in sorted(names):
            if self._remote is None:
                with reading.readable_errors(self._folder / name, "Check the rights to it."):
                    (self._folder / name).unlink()
                continue
            fs, path = self._remote.system
            with self._failing(f"Removing {name} from"):
                fs.rm_file(f"{path.rstrip('/')}/{name}")

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turn a file system's failures into readable errors."""
        try:
            yield
        except Exception as error:  # every file system has errors of its own
            raise EnvironmentProblem(
                f"{what} {self.address} failed.",
                f"{type(error).__name__}: {error}.",
                "Check the address and your access rights, then continue with --resume.",
            ) from error

    def unlock_file(self) -> None:
        """Remove the lock file from a folder that is kept."""
        if self._remote is None:
            (self._folder / _LOCK).unlink(missing_ok=True)
        self.release()

    def remove(self) -> None:
        """Remove a folder on this machine; remote folders are left alone."""
        self.release()
        if self._remote is None:
            shutil.rmtree(self._folder, ignore_errors=True)


def is_outside_source(output: str, source: str) -> bool:
    """Whether an output is outside a source."""
    a, b = (_normal(address) for address in (output, source))
    return a != b and not a.startswith(b.rstrip("/") + "/")


def _normal(address: str) -> str:
    if is_remote(address):
        return address.rstrip("/")
    return str(os.path.realpath(Storage(address).local()))
