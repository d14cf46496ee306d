"""Outputs are whole or absent: written to a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from capsedge.errors import EnvironmentProblem, UsageError


@contextlib.contextmanager
def replacing(target: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``target`` that takes its name when the block ends well.

    Raises:
        UsageError: the folder does not exist or cannot be written.
        EnvironmentProblem: the disk is full or failing; nothing is left behind.
    """
    target = Path(target)
    if target.is_dir():
        raise UsageError(f"Cannot write {target}.", "It is a folder.", "Name a file.")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UsageError(
            f"Cannot write {target}.", f"{error.strerror}.", "Choose another place."
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; the result gets the mode that open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        raise EnvironmentProblem(
            f"Writing {target} failed.",
            f"{error.strerror or error}.",
            "Nothing was left behind. Free some space or choose another place.",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(target: Path | str) -> None:
    """Find out before long work whether ``target`` can be written; changes nothing.

    Raises:
        UsageError: as ``replacing``.
    """
    target = Path(target)
    if target.is_dir():
        raise UsageError(f"Cannot write {target}.", "It is a folder.", "Name a file.")
    if not target.parent.is_dir():
        raise UsageError(
            f"Cannot write {target}.",
            f"There is no folder {target.parent}.",
            "Make it, or choose another place.",
        )
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"Cannot write {target}.",
            f"The folder {target.parent} is not yours to write in.",
            "Choose another place.",
        )


def write_bytes(target: Path | str, data: bytes) -> None:
    """Write a file whole or not at all; raises as ``replacing`` does."""
    with replacing(target) as temporary:
        temporary.write_bytes(data)


def write_text(target: Path | str, text: str) -> None:
    """Write a UTF-8 file whole or not at all; raises as ``replacing`` does."""
    write_bytes(target, text.encode())


def sha256(path: Path | str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
