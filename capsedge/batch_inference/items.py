"""Define the contents of a source: parts, which can be read independently, and the items in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from capsedge.batch_inference.storage import Storage
from capsedge.errors import UsageError
from capsedge.runtime.images.headers import is_image_name
from capsedge.spec import limits

PART_ROWS = 1024  # images per part, if the format can be split


@dataclass(frozen=True)
class Item:
    """One image of a source, or the error in its place.

    Attributes:
        name: its identity within the source: a path, a member of an archive, or the number of a row.
        image: the content of an image file, or an array; None if there is an error.
        error: why there is no image; empty if there is one.
    """

    name: str
    image: Any = None
    error: str = ""


@dataclass(frozen=True)
class Part:
    """A piece of a source that can be read independently.

    Attributes:
        number: its position in the source.
        file: the file that it is in, relative to the source; empty if the source is one file.
        start: where it begins, in the units of the format: a row, a row group, a byte.
        stop: where it ends, in the same units; None for the end of the file.
        row: number of its first image in the file, if the format numbers them.
        rows: its images; None if they are not known before reading.
        names: the files that it consists of, for a folder of images.
        error: why the file cannot be read; empty if it can.
    """

    number: int
    file: str = ""
    start: int = 0
    stop: int | None = None
    row: int = 0
    rows: int | None = None
    names: tuple[str, ...] = ()
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class ImageSource(Protocol):
    """A set of images that is read part by part; small enough to be sent to other machines."""

    @property
    def storage(self) -> Storage:
        """The storage that it is read from."""
        ...

    @property
    def kind(self) -> str:
        """The format, such as ``parquet``."""
        ...

    @property
    def column(self) -> str:
        """The column or array with the images; empty if the format has none, or only one."""
        ...

    def parts(self) -> list[Part]:
        """The parts, which depend only on the source.

        Raises:
            UsageError: the source cannot be read.
        """
        ...

    def read(self, part: Part) -> Iterator[Item]:
        """The items of a part, in order; whatever cannot be read becomes an item with an error.

        Raises:
            UsageError: the source is gone.
        """
        ...


def qualified_image_name(file: str, name: object) -> str:
    """The identity of an image in a file of a source."""
    return f"{file}/{name}" if file else str(name)


# --- Folders of images, with their subfolders ---


def is_image(name: str) -> bool:
    """Whether a file is an image by its name; a hidden one is not."""
    return is_image_name(name.rpartition("/")[2])


@dataclass(frozen=True)
class ImageFolder:
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
        return ImageFolder, (self.storage, ())  # other machines receive the names with the parts

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
                    # Reading one byte beyond the limit makes the decoder refuse the file.
                    yield Item(name, file.read(limits.IMAGE_FILE_BYTES + 1))
            except (UsageError, OSError) as error:
                why = error.why if isinstance(error, UsageError) else str(error)
                yield Item(name, error=f"The file cannot be read. {why}")
