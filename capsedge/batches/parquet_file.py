"""Opening parquet files of strangers (https://parquet.apache.org/docs/file-format/).

A file may carry an Arrow schema beside its own (the key ``ARROW:schema`` in its footer), and that may name
extension types, some of which unpickle what the file holds as soon as it is opened where their package is
loaded. Such a file is refused; and the key is hidden from pyarrow in any case, so that columns have the types
of parquet alone.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from capsedge.batches.parquet_pages import RowGroup, row_groups, rows_at_once
from capsedge.errors import CapsedgeError, EnvironmentProblem
from capsedge.runtime.files import limits

MAGIC = b"PAR1"
INSTALL = "pip install 'capsedge[batch]'"
_KEY, _HIDDEN = b"ARROW:schema", b"ARROW:hidden"
_BUFFER = 1 << 20
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}")
_EXTENSION = b"ARROW:extension:name"


class BadParquet(Exception):
    """The file is damaged, exceeds a limit or is not harmless; the message says why."""


@dataclass(frozen=True)
class Table:
    """An open parquet file.

    Attributes:
        content: a `pyarrow.parquet.ParquetFile` whose columns have plain types.
        groups: its row groups.
    """

    content: Any
    groups: tuple[RowGroup, ...]
    _file: BinaryIO

    def batches(self, groups: Sequence[int], column: str, rows: int) -> Iterator[Any]:
        """Batches of a column, each of so few rows that their values stay within the limits.

        On this thread alone: pyarrow's own threads may still wait for the file when the process ends, which
        aborts it.

        Args:
            groups: the row groups.
            column: ``name``, or ``name.field`` of a structure.
            rows: of one batch, at most.

        Raises:
            BadParquet: the column is damaged or exceeds a limit.
        """
        with reading():
            for place, lists in self._places(column):
                chunks = [self.groups[k].chunks[place] for k in groups]
                rows = min(rows, rows_at_once(self._file, chunks, lists))
            found = self.content.iter_batches(
                rows, row_groups=groups, columns=[column], use_threads=False
            )
        while True:
            with reading():
                batch = next(found, None)
            if batch is None:
                return
            yield batch

    def _places(self, column: str) -> Iterator[tuple[int, bool]]:
        """The columns of the schema that one of the table consists of, and whether each holds lists."""
        for k in range(len(self.content.schema)):
            stored = self.content.schema.column(k)
            if stored.path == column or stored.path.startswith(f"{column}."):
                yield k, stored.max_repetition_level > 0


@contextmanager
def opened_parquet(file: BinaryIO) -> Iterator[Table]:
    """A parquet file, while the block runs.

    Args:
        file: the file, open for reading at any position.

    Raises:
        BadParquet: it is no parquet file, damaged, or has extension types.
        EnvironmentProblem: pyarrow is not installed.
    """
    parquet = import_parquet()
    with reading():
        plain = _Plain(file)
        found = parquet.ParquetFile(
            plain,
            buffer_size=_BUFFER,  # columns are read as a stream, and not as a whole
            thrift_string_size_limit=limits.PARQUET_FOOTER_BYTES,
            thrift_container_size_limit=limits.PARQUET_VALUES,
        )
        if len(found.schema) > limits.PARQUET_COLUMNS:
            raise BadParquet(f"it has over {limits.PARQUET_COLUMNS:,} columns")
        rows = sum(group.rows for group in plain.groups)
        if rows > limits.PARQUET_ROWS:
            raise BadParquet(f"it states {rows:,} rows, the limit is {limits.PARQUET_ROWS:,}")
    with found:
        yield Table(found, plain.groups, file)


@contextmanager
def reading() -> Iterator[None]:
    """Turn the block's failures to read parquet into one kind of error.

    Raises:
        BadParquet: the file is damaged.
    """
    try:
        yield
    except (BadParquet, CapsedgeError):
        raise
    except Exception as error:  # pyarrow raises many kinds, and file systems their own
        raise BadParquet(str(error).partition("\n")[0] or type(error).__name__) from error


def import_parquet() -> Any:
    """`pyarrow.parquet`.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentProblem("Tables need pyarrow.", f"{error}.", INSTALL) from error
    return pyarrow.parquet


class _Plain(io.RawIOBase):
    """A parquet file without the Arrow schema in its footer.

    Args:
        file: the file, open for reading at any position.

    Raises:
        BadParquet: it is no parquet file, or has extension types.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(max(0, self._size - 8))
        tail = file.read(8)
        if len(tail) < 8 or tail[4:] != MAGIC:
            raise BadParquet("it does not end as a parquet file does")
        length = int.from_bytes(tail[:4], "little")
        if length > min(limits.PARQUET_FOOTER_BYTES, self._size - 8):
            raise BadParquet(f"its footer has {length:,} bytes")
        self._start = self._size - 8 - length
        file.seek(self._start)
        footer = file.read(length + 8)
        _check_plain(footer)
        self.groups = row_groups(footer[:-8])  # refuses lists that are longer than the footer
        self._footer = footer.replace(_KEY, _HIDDEN)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        data = b""
        if self._at < self._start:
            self._file.seek(self._at)
            data = self._file.read(min(stop, self._start) - self._at)
        if stop > self._start:
            data += self._footer[max(0, self._at - self._start) : stop - self._start]
        self._at += len(data)
        return data


def _check_plain(footer: bytes) -> None:
    """Refuse a footer whose Arrow schema has extension types.

    Raises:
        BadParquet: it has.
    """
    if _KEY not in footer:
        return
    for text in _BASE64.findall(footer):
        try:
            schema = base64.b64decode(text[: len(text) // 4 * 4])
        except binascii.Error:
            continue
        if _EXTENSION in schema:
            raise BadParquet("it has extension types, which are not read")
