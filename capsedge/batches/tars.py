"""Tar archives of images, as WebDataset shards are (https://github.com/webdataset/webdataset).

Every member with the suffix of an image is an image; nothing else in an archive is read or decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import pairwise
from typing import BinaryIO

from capsedge.batches.folder import is_image
from capsedge.batches.items import PART_ROWS, Item, Part, qualified
from capsedge.batches.storage import Storage
from capsedge.batches.tar_file import BadTar, Member, Stream, members
from capsedge.errors import UsageError
from capsedge.runtime.files import limits

SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Tars:
    """Archives of images.

    Attributes:
        storage: the place.
        files: the archives, relative to it; one empty name if it is an archive itself.
    """

    storage: Storage
    files: tuple[str, ...]
    kind: str = "tar"
    column: str = ""

    def parts(self) -> list[Part]:
        """The parts: of plain archives on this machine a fixed number of images, others as a whole.

        Only headers are read for this, which takes long over a network or through a decompressor.
        """
        number = counting()
        return [
            replace(part, number=next(number)) for file in self.files for part in self._cut(file)
        ]

    def _cut(self, file: str) -> list[Part]:
        try:
            with self.storage.opened(file) as content:
                stored = content.seek(0, os.SEEK_END)
                content.seek(0)
                stream = Stream(content, stored)
                if self.storage.remote or stream.packed:
                    return [Part(0, file, stop=stored)]
                starts = [member.offset for member in _until_torn(stream) if is_image(member.name)]
        except (UsageError, OSError) as error:
            why = error.why if isinstance(error, UsageError) else str(error)
            return [Part(0, file, rows=1, error=f"The archive cannot be read. {why}")]
        cuts = [0, *starts[PART_ROWS::PART_ROWS], stored]
        return [Part(0, file, a, b) for a, b in pairwise(cuts)]

    def read(self, part: Part) -> Iterator[Item]:
        """The images of a part; a damaged archive ends with an error in the place of the rest."""
        if part.error:
            yield Item(part.file, error=part.error)
            return
        place = qualified(part.file, f"from byte {part.start}")
        try:
            with self.storage.opened(part.file) as content:
                size = content.seek(0, os.SEEK_END)
                content.seek(0)
                yield from _images(content, size, part)
        except (BadTar, OSError, EOFError) as error:
            yield Item(place, error=f"The archive is damaged, and read up to here: {error}.")
        except UsageError as error:
            yield Item(place, error=f"The archive cannot be read. {error.why}")


def _until_torn(stream: Stream) -> Iterator[Member]:
    """The members of an archive as far as it is whole."""
    try:
        yield from members(stream)
    except BadTar:
        return  # the last part tells


def _images(content: BinaryIO, size: int, part: Part) -> Iterator[Item]:
    stream = Stream(content, size)
    for member in members(stream, part.start):
        if not stream.packed and part.stop is not None and member.offset >= part.stop:
            return
        if is_image(member.name):
            yield _image(stream, member, part.file)


def _image(stream: Stream, member: Member, file: str) -> Item:
    """A member as an item; one that is not a plain file, too large or cut off has an error.

    Raises:
        BadTar: the archive is damaged.
    """
    name = qualified(file, member.name)
    if member.other:
        return Item(name, error=f"The member is {member.other}, which is not followed.")
    if member.size > limits.IMAGE_FILE_BYTES:
        return Item(
            name,
            error=f"The member has {member.size:,} bytes, the limit is {limits.IMAGE_FILE_BYTES:,}.",
        )
    data = stream.read(member.size)
    if len(data) < member.size:
        return Item(name, error=f"The archive ends after {len(data):,} bytes of {member.size:,}.")
    return Item(name, data)
