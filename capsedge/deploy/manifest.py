"""The manifest of a deployed folder: what it consists of, so that the next run replaces nothing else."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from capsedge.deploy.report import DeployedFile
from capsedge.errors import CapsedgeError
from capsedge.runtime.files import limits, opening
from capsedge.runtime.files.documents import decode, parse

MANIFEST = "capsedge.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a deployed folder.

    Raises:
        UsageError: it cannot be read.
        Malformed: it is none.
    """
    with opening.opened(folder / MANIFEST) as file:
        document = parse(file.read(limits.JSON_BYTES + 1).decode(errors="replace"))
    return decode(dict[str, Any], document)


def earlier_files(folder: Path) -> list[str]:
    """The paths that the manifest of a folder lists, its own among them; none if there is no manifest."""
    if opening.kind(folder) == opening.FOLDER:
        with suppress(CapsedgeError, ValueError):
            return [*decode(dict[str, Any], read_manifest(folder).get("files"), "files"), MANIFEST]
    return []


def listed(path: str, content: bytes | Path) -> DeployedFile:
    """A file of the folder, as the manifest names it."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    return DeployedFile(path, len(data), hashlib.sha256(data).hexdigest())
