"""Places that sources are read from: this machine's files, and file systems of fsspec by their addresses.

https://filesystem-spec.readthedocs.io. An address is one scheme and one path: chains of file systems
(``::``), through which archives would unpack themselves, are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import limits, opening

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Packages of file systems that fsspec knows by their schemes.
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
    """Whether an address leads to another file system than this machine's."""
    found = _SCHEME.match(address)
    return found is not None and found[1].lower() not in ("file", "local")


def plain(address: str) -> str:
    """The path in an address of this machine's files, such as ``file:///photos``; any other as it is."""
    scheme = _SCHEME.match(address)
    return address if scheme is None or is_remote(address) else unquote(address[scheme.end() :])


class Storage:
    """A file or a folder and what is below it, read through relative names.

    Args:
        address: a path, or ``scheme://path``.

    Raises:
        UsageError: the address is not one that is read.
    """

    def __init__(self, address: str) -> None:
        if address.startswith("pipe:") or "::" in address:
            raise UsageError(
                f"{address} is not read.",
                "Commands and chains of file systems are no sources.",
                "Name a file, a folder, or one address such as s3://bucket/folder.",
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
                f"{self.address} is read with fsspec.", f"{error}.", INSTALL
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
                f"{self.address} is not an address that is read.", f"{error}.", "Check it."
            ) from error
        return system, path

    @contextmanager
    def _reached(self, name: str) -> Iterator[None]:
        """Turn a file system's failures into readable errors.

        Raises:
            UsageError: the place cannot be read.
        """
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
                "Check the address and the rights to it.",
            ) from error

    def kind(self) -> str | None:
        """What is there: ``file`` or ``folder``; None for nothing.

        Raises:
            UsageError: it cannot be reached, or is neither.
        """
        if not self.remote:
            found = opening.kind(self._path)
            if found not in (None, opening.FILE, opening.FOLDER):
                raise UsageError(
                    f"Cannot read {self.address}.", f"It is a {found}.", "Name a file or a folder."
                )
            return found
        system, path = self.system
        with self._reached(""):
            if not system.exists(path):
                return None
            return opening.FOLDER if system.isdir(path) else opening.FILE

    def names(self) -> list[str]:
        """The files below the folder, relative, with ``/`` between names, sorted.

        Raises:
            UsageError: it cannot be read, or has too many files.
        """
        found: list[str] = []
        for name in self._found():
            found.append(name)
            if len(found) > limits.FOLDER_FILES:
                raise UsageError(
                    f"The folder {self.address} has over {limits.FOLDER_FILES:,} files.",
                    "",
                    "Divide it, or store the images in tar or parquet files.",
                )
        return sorted(found)

    def _found(self) -> Iterator[str]:
        if self.remote:
            system, path = self.system
            with self._reached(""):
                files = system.find(path)
            root = path.rstrip("/") + "/"
            yield from (str(file).removeprefix(root) for file in files)
            return

        def failed(error: OSError) -> None:
            with opening.explained(error.filename or self._path):
                raise error

        for folder, _, files in os.walk(self._path, onerror=failed):
            inner = os.path.relpath(folder, self._path)
            prefix = "" if inner == "." else inner.replace(os.sep, "/") + "/"
            yield from (prefix + file for file in files)

    @contextmanager
    def opened(self, name: str = "") -> Iterator[BinaryIO]:
        """A file, open for reading at any position.

        Args:
            name: the file's name below the folder; empty for the place itself.

        Raises:
            UsageError: it cannot be opened.
        """
        if not self.remote:
            with opening.opened(self.local(name)) as file:
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
        """Bytes of a file.

        Raises:
            UsageError: it cannot be opened.
        """
        with self.opened(name) as file, self._reached(name):
            return file.seek(0, os.SEEK_END)

    def start(self, count: int, name: str = "") -> bytes:
        """The first bytes of a file.

        Raises:
            UsageError: it cannot be read.
        """
        with self.opened(name) as file, self._reached(name):
            return file.read(count)
