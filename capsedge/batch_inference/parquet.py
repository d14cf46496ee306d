"""Read untrusted parquet files with a column of images.

A file may carry an Arrow schema besides its own (the key ``ARROW:schema`` in its footer). That schema may
name extension types, some of which, once their package is loaded, unpickle data from the file as soon as it
is opened. Such a file is refused. The key is hidden from pyarrow in any case, so columns only have parquet's
own types.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice
from typing import Any, BinaryIO

from numpy.typing import NDArray

from capsedge.batch_inference.items import PART_ROWS, Item, Part, qualified_image_name
from capsedge.batch_inference.parquet_pages import RowGroup, row_groups, rows_at_once
from capsedge.batch_inference.storage import Storage
from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.spec import limits

# --- Opening (https://parquet.apache.org/docs/file-format/) ---

MAGIC = b"PAR1"
INSTALL = "pip install 'capsedge[batch]'"
_KEY, _HIDDEN = b"ARROW:schema", b"ARROW:hidden"
_BUFFER = 1 << 20
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}")
_EXTENSION = b"ARROW:extension:name"


class BadParquet(Exception):
    """The file is damaged, exceeds a limit or is not harmless; the message says why."""


@dataclass(frozen=True)
class ParquetTable:
    """An open parquet file.

    Attributes:
        content: a `pyarrow.parquet.ParquetFile` whose columns have plain types.
        groups: its row groups.
    """

    content: Any
    groups: tuple[RowGroup, ...]
    _file: BinaryIO

    def batches(self, groups: Sequence[int], column: str, rows: int) -> Iterator[Any]:
        """Batches of a column, each small enough that its values stay within the limits.

        Reading stays on this thread: pyarrow's own threads may still wait for the file when the process ends,
        which would abort it.

        Args:
            column: ``name``, or ``name.field`` of a structure.
            rows: most rows per batch.
        """
        with readable_errors():
            for place, lists in self._schema_columns(column):
                chunks = [self.groups[k].chunks[place] for k in groups]
                rows = min(rows, rows_at_once(self._file, chunks, lists))
            batches = self.content.iter_batches(
                rows, row_groups=groups, columns=[column], use_threads=False
            )
        while True:
            with readable_errors():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _schema_columns(self, column: str) -> Iterator[tuple[int, bool]]:
        """The schema columns behind a column of the table, and whether each holds lists."""
        for k in range(len(self.content.schema)):
            stored = self.content.schema.column(k)
            if stored.path == column or stored.path.startswith(f"{column}."):
                yield k, stored.max_repetition_level > 0


@contextmanager
def opened_parquet(file: BinaryIO) -> Iterator[ParquetTable]:
    """Open a parquet file for the duration of the block."""
    parquet = import_parquet()
    with readable_errors():
        plain = _Plain(file)
        table = parquet.ParquetFile(
            plain,
            buffer_size=_BUFFER,  # stream columns instead of reading them whole
            thrift_string_size_limit=limits.PARQUET_FOOTER_BYTES,
            thrift_container_size_limit=limits.PARQUET_VALUES,
        )
        if len(table.schema) > limits.PARQUET_COLUMNS:
            raise BadParquet(f"it has over {limits.PARQUET_COLUMNS:,} columns")
        rows = sum(group.rows for group in plain.groups)
        if rows > limits.PARQUET_ROWS:
            raise BadParquet(f"it states {rows:,} rows, the limit is {limits.PARQUET_ROWS:,}")
    with table:
        yield ParquetTable(table, plain.groups, file)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the block's failures to read parquet into one kind of error."""
    try:
        yield
    except (BadParquet, CapsedgeError):
        raise
    except Exception as error:  # pyarrow and file systems raise many kinds of errors
        raise BadParquet(str(error).partition("\n")[0] or type(error).__name__) from error


def import_parquet() -> Any:
    """`pyarrow.parquet`. Raises EnvironmentProblem if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentProblem("Tables need pyarrow.", f"{error}.", INSTALL) from error
    return pyarrow.parquet


class _Plain(io.RawIOBase):
    """A parquet file without the Arrow schema in its footer.

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
    """Refuse a footer whose Arrow schema has extension types."""
    if _KEY not in footer:
        return
    for text in _BASE64.findall(footer):
        try:
            schema = base64.b64decode(text[: len(text) // 4 * 4])
        except binascii.Error:
            continue
        if _EXTENSION in schema:
            raise BadParquet("it has extension types, which are not read")


# --- Images in a column: their bytes, or their values as lists ---

SUFFIXES = (".parquet",)
_USUAL = "image"
_READ = 16  # rows decoded at once


@dataclass(frozen=True)
class Tables:
    """Parquet files.

    Attributes:
        storage: the place.
        files: the files, relative to the storage; one empty name if the storage is itself a file.
        column: the column of images; ``name.bytes`` for bytes in a structure, as Hugging Face stores them.
    """

    storage: Storage
    files: tuple[str, ...]
    column: str = ""
    kind: str = "parquet"

    def parts(self) -> list[Part]:
        """The parts, made of whole row groups; an unreadable file becomes a part with an error."""
        number = counting()
        return [
            replace(part, number=next(number)) for file in self.files for part in self._cut(file)
        ]

    def _cut(self, file: str) -> list[Part]:
        try:
            with self.storage.opened(file) as content, opened_parquet(content) as table:
                groups = [group.rows for group in table.groups]
        except (BadParquet, UsageError, OSError) as error:
            if not file:
                raise _unreadable(self.storage.address, error) from error
            return [Part(0, file, rows=1, error=f"The file cannot be read: {_why(error)}")]
        return list(_grouped(file, groups))

    def read(self, part: Part) -> Iterator[Item]:
        """The images of a part; from the first damage on, every row has an error."""
        if part.error or part.rows is None or part.stop is None:
            yield Item(part.file, error=part.error)
            return
        done = 0
        try:
            with self.storage.opened(part.file) as content, opened_parquet(content) as table:
                groups = list(range(part.start, part.stop))
                for batch in table.batches(groups, self.column, _READ):
                    for image in islice(_values(batch.column(0)), part.rows - done):
                        name = qualified_image_name(part.file, part.row + done)
                        done += 1
                        yield _item(name, image)
                if done < part.rows:
                    raise BadParquet("it has fewer rows than its footer states")
        except (BadParquet, UsageError, OSError) as error:
            for row in range(part.row + done, part.row + part.rows):
                yield Item(
                    qualified_image_name(part.file, row),
                    error=f"The file is damaged: {_why(error)}",
                )


def find_column(storage: Storage, files: Sequence[str], requested: str) -> str:
    """The column of images: the named one, the only candidate, or ``image`` among several."""
    problem: Exception = BadParquet("there is none")
    for file in files:
        try:
            with storage.opened(file) as content, opened_parquet(content) as table:
                schema = table.content.schema_arrow
        except (BadParquet, UsageError, OSError) as error:
            problem = error
            continue
        return _column(storage.address, schema, requested)
    raise _unreadable(storage.address, problem)


def _column(address: str, schema: Any, requested: str) -> str:
    known = [name for field in schema if (name := _images_in(field))]
    names = [name.removesuffix(".bytes") for name in known]
    shown = ", ".join(names[:20]) or "none"
    requested = requested or (names[0] if len(names) == 1 else _USUAL if _USUAL in names else "")
    if requested in known:
        return requested
    if requested in names:
        return known[names.index(requested)]
    raise UsageError(
        f"{address} has no column '{requested}' of images."
        if requested
        else f"{address} has {len(names) or 'no'} columns that can be images.",
        f"Columns of bytes or of lists of numbers: {shown}.",
        "Choose one."
        if names
        else "Store the bytes of image files, or lists of numbers, in a column.",
        command="Choose one with --column." if names else "",
    )


def _images_in(field: Any) -> str:
    """The path of the images in a field; empty if there are none."""
    import pyarrow.types as types

    kind = field.type
    if types.is_struct(kind):
        inner = [kind.field(k) for k in range(kind.num_fields)]
        holds_bytes = any(f.name == "bytes" and _is_bytes(f.type) for f in inner)
        return f"{field.name}.bytes" if holds_bytes else ""
    if _is_bytes(kind):
        return str(field.name)
    lists = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, lists = kind.value_type, lists + 1
    numbers = types.is_floating(kind) or kind in _unsigned()
    return str(field.name) if 1 <= lists <= 3 and numbers else ""


def _unsigned() -> tuple[Any, ...]:
    import pyarrow

    return pyarrow.uint8(), pyarrow.uint16()


def _is_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _grouped(file: str, groups: Sequence[int]) -> Iterator[Part]:
    """Neighbouring row groups, joined into parts of at least `PART_ROWS` rows if there are that many."""
    start = row = rows = 0
    for k, size in enumerate(groups, 1):
        rows += size
        if rows >= PART_ROWS or (k == len(groups) and rows):
            yield Part(0, file, start, k, row, rows)
            start, row, rows = k, row + rows, 0


def _values(column: Any) -> Iterator[Any]:
    """The values of a column: bytes, arrays, None, or the text of an error."""
    import pyarrow.types as types

    with readable_errors():
        while types.is_struct(column.type):  # a null structure means a null field
            column = column.flatten()[0]
    read = _bytes if _is_bytes(column.type) else _array
    for k in range(len(column)):
        with readable_errors():
            row = column.slice(k, 1)
            value = None if row.null_count else read(row)
        yield value


def _bytes(rows: Any) -> bytes | str:
    """The value of one row; the text of an error if it exceeds the size limit for an image file."""
    content = rows[0].as_buffer()
    if content.size > limits.IMAGE_FILE_BYTES:
        return f"It has {content.size:,} bytes, the limit is {limits.IMAGE_FILE_BYTES:,}."
    data: bytes = content.to_pybytes()
    return data


def _array(rows: Any) -> NDArray[Any] | str:
    """The value of one row, ``[...]``; the text of an error if its lists do not have one size."""
    import pyarrow.types as types

    shape: list[int] = []
    while not (types.is_floating(rows.type) or types.is_integer(rows.type)):
        sizes = {len(value) if value.is_valid else -1 for value in rows} or {0}
        if len(sizes) != 1 or min(sizes) < 0:
            return "Its lists have different sizes."
        shape.append(sizes.pop())
        rows = rows.flatten()
    if rows.null_count:
        return "Some of its values are null."
    if len(rows) > limits.INPUT_VALUES:
        return f"It has {len(rows):,} values, the limit is {limits.INPUT_VALUES:,}."
    array: NDArray[Any] = rows.to_numpy(zero_copy_only=False).reshape(shape)
    return array


def _item(name: str, value: Any) -> Item:
    if value is None:
        return Item(name, error="The value is null.")
    return Item(name, error=value) if isinstance(value, str) else Item(name, value)


def _why(error: Exception) -> str:
    return error.why if isinstance(error, UsageError) else f"{error}."


def _unreadable(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"{address} cannot be read as parquet.",
        f"{_why(error)[:1].upper()}{_why(error)[1:]}",
        "Pass a parquet file, or a folder of them, with a column of images.",
    )
