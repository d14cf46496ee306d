"""What a column of a parquet file unpacks to, told from the headers of its pages before any is unpacked.

https://parquet.apache.org/docs/file-format/data-pages/. A page of a few bytes may unpack to gigabytes, and a
dictionary repeats a value in as many rows as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from capsedge.batches.thrift import BadThrift, Fields, Truncated, read_struct
from capsedge.runtime.files import limits

_WINDOW = 1 << 10  # bytes that nearly every header fits in
_DICTIONARY = 2  # of PageType
# Fields of PageHeader, and those of its parts that count values.
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_COUNTS = {0: 5, _DICTIONARY: 7, 3: 8}  # by PageType: data, dictionary, data of version 2


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        dictionary: whether it holds the dictionary and no values of rows.
        stored: its bytes in the file.
        unpacked: its bytes once they are unpacked.
        values: that it holds; in lists, of all their rows together.
    """

    dictionary: bool
    stored: int
    unpacked: int
    values: int


class BadPages(Exception):
    """The pages are damaged or exceed a limit; the message says why."""


@dataclass(frozen=True)
class Chunk:
    """A column in a row group: where its pages are.

    Attributes:
        start: offset of the first.
        stop: where the last one ends.
        values: that they hold.
    """

    start: int
    stop: int
    values: int


@dataclass(frozen=True)
class RowGroup:
    """A row group: its rows, and its columns in the order of the schema."""

    rows: int
    chunks: tuple[Chunk, ...]


def row_groups(footer: bytes) -> tuple[RowGroup, ...]:
    """The row groups that a footer states; pyarrow's own objects for them abort the process on some footers.

    Raises:
        BadThrift: the footer is damaged, or has more or deeper values than the limits allow.
        BadPages: it states sizes that no file has.
    """
    fields, _ = read_struct(footer)
    return tuple(
        RowGroup(_long(group, 3), tuple(_chunk(column) for column in _structures(group, 1)))
        for group in _structures(fields, 4)
    )


def _chunk(column: Fields) -> Chunk:
    """A chunk, which begins at its dictionary if that comes before its data."""
    stated = column.get(3)
    if not isinstance(stated, dict):
        raise BadPages("a column without a description")
    start = _long(stated, 9)
    dictionary = _long(stated, 11) if 11 in stated else 0
    if 0 < dictionary < start:
        start = dictionary
    return Chunk(start, start + _long(stated, 7), _long(stated, 5))


def _structures(fields: Fields, key: int) -> list[Fields]:
    found = fields.get(key)
    return found if isinstance(found, list) else []


def _long(fields: Fields, key: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise BadPages("a row group states no size, or a negative one")
    return value


def rows_at_once(file: BinaryIO, chunks: Iterable[Chunk], lists: bool) -> int:
    """Check the pages of a column; returns how many rows may be decoded at once, at least 1.

    Args:
        file: the parquet file.
        chunks: of the column, in the row groups that will be read.
        lists: whether the column holds lists.

    Raises:
        BadPages: a page is damaged or unpacks to more than the limits allow.
    """
    largest = 1
    for chunk in chunks:
        values = stored = 0
        for page in _pages(file, chunk):
            largest = max(largest, page.unpacked)
            values += 0 if page.dictionary else page.values
            stored += page.stored
        # All of them may be of one row, which is decoded as a whole.
        most = max(limits.INPUT_VALUES, limits.PARQUET_LIST_RATIO * stored)
        most = min(most, limits.PARQUET_LIST_VALUES)
        if lists and values > most:
            raise BadPages(
                f"{stored:,} bytes of a row group hold lists of {values:,} values, the limit is "
                f"{most:,}: write smaller row groups"
            )
    # No value is larger than the page that it, or the dictionary with it, is in.
    return max(1, limits.PARQUET_READ_BYTES // largest)


def _pages(file: BinaryIO, chunk: Chunk) -> Iterator[Page]:
    """The pages of a column chunk, as pyarrow finds them.

    Raises:
        BadPages: one is damaged, or unpacks to more than the limits allow.
    """
    at, seen = chunk.start, 0
    while at < chunk.stop and seen < chunk.values:
        page, header = _page(file, at)
        yield page
        seen += 0 if page.dictionary else page.values
        at += header + page.stored


def _page(file: BinaryIO, at: int) -> tuple[Page, int]:
    """The page at an offset, and the bytes of its header.

    Raises:
        BadPages: it is damaged, or unpacks to more than the limits allow.
    """
    fields, length = _header(file, at)
    kind, unpacked, stored = (_number(fields, key) for key in (_TYPE, _UNPACKED, _PACKED))
    most = max(limits.UNPACKED_BYTES, limits.UNPACKED_RATIO * stored)
    if unpacked > most:
        raise BadPages(f"the page at byte {at:,} unpacks to {unpacked:,} bytes")
    inner = fields.get(_COUNTS.get(kind, 0))
    values = _number(inner, 1) if isinstance(inner, dict) else 0
    return Page(kind == _DICTIONARY, stored, unpacked, values), length


def _header(file: BinaryIO, at: int) -> tuple[Fields, int]:
    size = _WINDOW
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return read_struct(data)
        except Truncated as error:
            if len(data) < size or size >= limits.PARQUET_PAGE_HEADER_BYTES:
                raise BadPages(f"the page at byte {at:,} has a damaged header") from error
            size *= 4
        except BadThrift as error:
            raise BadPages(f"the page at byte {at:,} has a damaged header: {error}") from error


def _number(fields: Fields, key: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise BadPages("a page states no size, or a negative one")
    return value
