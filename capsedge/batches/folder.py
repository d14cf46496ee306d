"""Folders of images, with their subfolders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capsedge.batches.items import PART_ROWS, Item, Part
from capsedge.batches.storage import Storage
from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.vision.image_headers import SUFFIXES


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return name.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class Folder:
    """The images of a folder.

    Attributes:
        storage: the place.
        names: the images, relative to it, in their order.
    """

    storage: Storage
    names: tuple[str, ...]
    kind: str = "folder"
    column: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Folder, (self.storage, ())  # other machines get the names with the parts

    def parts(self) -> list[Part]:
        """The parts, of equal size."""
        starts = range(0, len(self.names), PART_ROWS)
        chosen = (self.names[start : start + PART_ROWS] for start in starts)
        return [Part(k, rows=len(few), names=few) for k, few in enumerate(chosen)]

    def read(self, part: Part) -> Iterator[Item]:
        """The files of a part."""
        for name in part.names:
            try:
                with self.storage.opened(name) as file:
                    # One byte over the limit lets the decoder refuse the file.
                    yield Item(name, file.read(limits.IMAGE_FILE_BYTES + 1))
            except (UsageError, OSError) as error:
                why = error.why if isinstance(error, UsageError) else str(error)
                yield Item(name, error=f"The file cannot be read. {why}")
