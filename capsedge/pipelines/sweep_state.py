"""What a sweep has made and measured, so that an interrupted one goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import documents, opening
from capsedge.runtime.files.documents import Malformed, decode
from capsedge.runtime.files.writing import make_folder, sha256, write_text

SCHEMA = 1
STATE = "sweep-state.json"


@dataclass(frozen=True)
class _Made:
    """A file, and its accuracy in the search once it is measured."""

    sha256: str
    accuracy: float | None = None


@dataclass(frozen=True)
class _Document:
    schema: int
    images: str
    files: dict[str, _Made]


class State:
    """The files in a folder, by name.

    Args:
        folder: made if it does not exist.
        images: digest of the images that files were calibrated and compared on.

    Raises:
        UsageError: the folder holds a sweep on other images.
        ArtefactError: its state is damaged.
    """

    def __init__(self, folder: Path, images: str) -> None:
        make_folder(folder)
        self._path = folder / STATE
        self._images = images
        self._files: dict[str, _Made] = {}
        if opening.kind(self._path) is not None:
            self._read()

    def _read(self) -> None:
        try:
            found = decode(_Document, documents.read(self._path))
            if found.schema != SCHEMA:
                raise Malformed(f"schema {found.schema}, not {SCHEMA}")
        except Malformed as error:
            raise ArtefactError(
                f"{self._path} cannot be read.", f"{error}.", "Keep the files in another folder."
            ) from error
        if found.images != self._images:
            raise UsageError(
                f"{self._path.parent} holds a sweep on other images.",
                "Its files were calibrated and compared on them.",
                "Keep the files in another folder.",
            )
        self._files = dict(found.files)

    def has(self, path: Path) -> bool:
        """Whether a file was made and is still the same."""
        made = self._files.get(path.name)
        return (
            made is not None and opening.kind(path) == opening.FILE and sha256(path) == made.sha256
        )

    def accuracy(self, path: Path) -> float | None:
        """The accuracy that was measured for a file that is still the same; None if there is none."""
        return self._files[path.name].accuracy if self.has(path) else None

    def add(self, path: Path, accuracy: float | None = None) -> None:
        """Note a file that was written, and its accuracy if it was measured."""
        self._files[path.name] = _Made(sha256(path), accuracy)
        files = {name: asdict(made) for name, made in self._files.items()}
        document = {"schema": SCHEMA, "images": self._images, "files": files}
        write_text(self._path, json.dumps(document, indent=2) + "\n")
