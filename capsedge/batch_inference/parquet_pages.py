"""Check an untrusted parquet file's metadata and pages before another library parses them.

The metadata are values in Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md). A list states its length
before its elements, and a parser that trusts it allocates memory for elements that do not exist.

A page (https://parquet.apache.org/docs/file-format/data-pages/) of a few bytes may unpack to gigabytes, and a
dictionary can repeat a value in any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from capsedge.spec import limits

# --- Thrift's compact protocol, walked within limits ---

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_NUMBERS = (_I16, _I32, _I64)
Fields = dict[int, object]


class BadThrift(Exception):
    """The bytes are damaged or exceed a limit; the message says why."""


class TruncatedThrift(BadThrift):
    """The bytes end before the value does."""


def read_thrift_struct(data: bytes) -> tuple[Fields, int]:
    """The fields of the structure that bytes begin with, and its length.

    Returns:
        Numbers, structures and lists of structures by field number, other values as None; the bytes that the
        structure takes.
    """
    walk = _Walk(data)
    fields = walk.struct(0)
    return fields, walk.at


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._remaining = limits.PARQUET_VALUES

    def struct(self, depth: int) -> Fields:
        if depth > limits.PARQUET_DEPTH:
            raise BadThrift(f"it is nested over {limits.PARQUET_DEPTH} deep")
        fields: Fields = {}
        number = 0
        while (head := self._byte()) & 15:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            # A boolean field has its value in its kind.
            fields[number] = None if kind in (_TRUE, _FALSE) else self._value(kind, depth)
            self._count(1)
        return fields

    def _count(self, values: int) -> None:
        self._remaining -= values
        if self._remaining < 0:
            raise BadThrift(f"it has over {limits.PARQUET_VALUES:,} values")

    def _value(self, kind: int, depth: int) -> object:
        if kind in _NUMBERS:
            return self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a boolean takes a byte
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            elements = self._elements(count, (head & 15,), depth)
            return elements if head & 15 == _STRUCT else None
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._elements(count, (kinds >> 4, kinds & 15), depth)
        else:
            raise BadThrift(f"it has a value of the unknown type {kind}")
        return None

    def _elements(self, count: int, kinds: tuple[int, ...], depth: int) -> list[object]:
        if depth > limits.PARQUET_DEPTH:
            raise BadThrift(f"it is nested over {limits.PARQUET_DEPTH} deep")
        if count > len(self._data) - self.at:  # an element takes at least one byte
            raise TruncatedThrift("it ends within a list")
        self._count(count)
        return [self._value(kind, depth + 1) for _ in range(count) for kind in kinds]

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise TruncatedThrift("it ends within a value")
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise TruncatedThrift("it ends within a value")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise BadThrift("it has a number of over 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


# --- Pages: the unpacked size of a column, from its page headers ---

_WINDOW = 1 << 10  # large enough for nearly every header
_DICTIONARY = 2  # a PageType
# Fields of PageHeader, and those of its parts that count values.
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_COUNTS = {0: 5, _DICTIONARY: 7, 3: 8}  # by PageType: data, dictionary, data of version 2


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        dictionary: whether it holds the dictionary and no values of rows.
        stored: its size in the file in bytes.
        unpacked: its size in bytes when unpacked.
        values: the number of values in it; for lists, over all rows.
    """

    dictionary: bool
    stored: int
    unpacked: int
    values: int


class BadPages(Exception):
    """The pages are damaged or exceed a limit; the message says why."""


@dataclass(frozen=True)
class Chunk:
    """The position of a column's pages in a row group.

    Attributes:
        start: offset of the first.
        stop: where the last one ends.
        values: the number of values in them.
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
    """The row groups that a footer states; pyarrow's own objects for them abort on some footers."""
    fields, _ = read_thrift_struct(footer)
    return tuple(
        RowGroup(_long(group, 3), tuple(_chunk(column) for column in _structures(group, 1)))
        for group in _structures(fields, 4)
    )


def _chunk(column: Fields) -> Chunk:
    """A column chunk; it begins at its dictionary if that precedes the data."""
    declared = column.get(3)
    if not isinstance(declared, dict):
        raise BadPages("a column without a description")
    start = _long(declared, 9)
    dictionary = _long(declared, 11) if 11 in declared else 0
    if 0 < dictionary < start:
        start = dictionary
    return Chunk(start, start + _long(declared, 7), _long(declared, 5))


def _structures(fields: Fields, key: int) -> list[Fields]:
    structures = fields.get(key)
    return structures if isinstance(structures, list) else []


def _long(fields: Fields, key: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise BadPages("a row group states no size, or a negative one")
    return value


def rows_at_once(file: BinaryIO, chunks: Iterable[Chunk], lists: bool) -> int:
    """Check the pages of a column; returns how many rows may be decoded at once, at least 1.

    Args:
        chunks: of the column, in the row groups that will be read.
        lists: whether the column holds lists.
    """
    largest = 1
    for chunk in chunks:
        values = stored = 0
        for page in _pages(file, chunk):
            largest = max(largest, page.unpacked)
            values += 0 if page.dictionary else page.values
            stored += page.stored
        # All of them may belong to one row, which is decoded as a whole.
        most = max(limits.INPUT_VALUES, limits.PARQUET_LIST_RATIO * stored)
        most = min(most, limits.PARQUET_LIST_VALUES)
        if lists and values > most:
            raise BadPages(
                f"{stored:,} bytes of a row group hold lists of {values:,} values, the limit is "
                f"{most:,}: write smaller row groups"
            )
    # No value is larger than its page, or than the page with its dictionary.
    return max(1, limits.PARQUET_READ_BYTES // largest)


def _pages(file: BinaryIO, chunk: Chunk) -> Iterator[Page]:
    """The pages of a column chunk, as pyarrow finds them."""
    at, seen = chunk.start, 0
    while at < chunk.stop and seen < chunk.values:
        page, header = _page(file, at)
        yield page
        seen += 0 if page.dictionary else page.values
        at += header + page.stored


def _page(file: BinaryIO, at: int) -> tuple[Page, int]:
    """The page at an offset, and the bytes of its header."""
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
            return read_thrift_struct(data)
        except TruncatedThrift as error:
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
