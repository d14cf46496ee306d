"""Writing a folder completely or not at all: under a temporary name beside its place, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.files.writing import failing


def write_folder(
    target: Path, files: Mapping[str, bytes | Path], replaced: Collection[str]
) -> None:
    """Write a folder that holds exactly these files.

    Args:
        target: the folder; a link to one stays a link.
        files: contents, or files to copy, by their paths in the folder, ``/`` between names.
        replaced: the paths that an earlier folder may hold, as in `check_replaceable`.

    Raises:
        UsageError: the target is no folder, holds other files, or cannot be written.
        EnvironmentProblem: the disk is full or failing; nothing is left behind.
    """
    check_replaceable(target, replaced)
    place = Path(os.path.realpath(target))
    with failing(target):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".capsedge-") as aside:
            fresh, older = Path(aside, "new"), Path(aside, "old")
            for name, content in files.items():
                _write(fresh / name, content)
            if place.exists():
                os.rename(place, older)
            try:
                os.rename(fresh, place)
            except BaseException:
                if older.exists():
                    os.rename(older, place)
                raise


def check_replaceable(target: Path, replaced: Collection[str]) -> None:
    """Refuse a target that is no folder, or that holds more than what may be replaced.

    Raises:
        UsageError: it is one of these.
    """
    found = opening.kind(target)
    if found is None:
        return
    if found != opening.FOLDER:
        raise UsageError(f"Cannot write {target}.", f"It is a {found}.", "Name a folder.")
    for folder, _, names in os.walk(target):
        for name in names:
            inner = Path(folder, name).relative_to(target).as_posix()
            if inner not in replaced:
                raise UsageError(
                    f"Cannot replace the folder {target}.",
                    f"It holds {inner}, which no earlier run wrote.",
                    "Name a new or an empty folder.",
                )


def _write(path: Path, content: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)
