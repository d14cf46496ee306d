"""Parquet files with a column of images: their bytes, or their values as lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from capsedge.batches.items import PART_ROWS, Item, Part, qualified
from capsedge.batches.parquet_file import BadParquet, opened_parquet, reading
from capsedge.batches.storage import Storage
from capsedge.errors import UsageError
from capsedge.runtime.files import limits

SUFFIXES = (".parquet",)
_USUAL = "image"
_READ = 16  # rows decoded at once


@dataclass(frozen=True)
class Tables:
    """Parquet files.

    Attributes:
        storage: the place.
        files: the files, relative to it; one empty name if it is a file itself.
        column: the column of images; ``name.bytes`` for the bytes in a structure, as of Hugging Face.
    """

    storage: Storage
    files: tuple[str, ...]
    column: str = ""
    kind: str = "parquet"

    def parts(self) -> list[Part]:
        """The parts, of whole row groups; a file that cannot be read is a part with an error.

        Raises:
            UsageError: it is the only file.
        """
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
        """The images of a part; from where the file is damaged, every row has an error."""
        if part.error or part.rows is None or part.stop is None:
            yield Item(part.file, error=part.error)
            return
        done = 0
        try:
            with self.storage.opened(part.file) as content, opened_parquet(content) as table:
                groups = list(range(part.start, part.stop))
                for batch in table.batches(groups, self.column, _READ):
                    for image in islice(_values(batch.column(0)), part.rows - done):
                        name = qualified(part.file, part.row + done)
                        done += 1
                        yield _item(name, image)
                if done < part.rows:
                    raise BadParquet("it has fewer rows than its footer states")
        except (BadParquet, UsageError, OSError) as error:
            for row in range(part.row + done, part.row + part.rows):
                yield Item(qualified(part.file, row), error=f"The file is damaged: {_why(error)}")


def find_column(storage: Storage, files: Sequence[str], wanted: str) -> str:
    """The column of images: the one named, the only one that can be, or ``image`` among several.

    Raises:
        UsageError: no file can be read, or there is no such column, or a choice.
    """
    problem: Exception = BadParquet("there is none")
    for file in files:
        try:
            with storage.opened(file) as content, opened_parquet(content) as table:
                schema = table.content.schema_arrow
        except (BadParquet, UsageError, OSError) as error:
            problem = error
            continue
        return _column(storage.address, schema, wanted)
    raise _unreadable(storage.address, problem)


def _column(address: str, schema: Any, wanted: str) -> str:
    known = [name for field in schema if (name := _images_in(field))]
    names = [name.removesuffix(".bytes") for name in known]
    shown = ", ".join(names[:20]) or "none"
    wanted = wanted or (names[0] if len(names) == 1 else _USUAL if _USUAL in names else "")
    if wanted in known:
        return wanted
    if wanted in names:
        return known[names.index(wanted)]
    raise UsageError(
        f"{address} has no column '{wanted}' of images."
        if wanted
        else f"{address} has {len(names) or 'no'} columns that can be images.",
        f"Columns of bytes or of lists of numbers: {shown}.",
        "Name one."
        if names
        else "Store the bytes of image files, or lists of numbers, in a column.",
        command="Name one with --column." if names else "",
    )


def _images_in(field: Any) -> str:
    """The path of the images in a field; empty if there are none."""
    import pyarrow.types as types

    kind = field.type
    if types.is_struct(kind):
        inner = [kind.field(k) for k in range(kind.num_fields)]
        found = any(f.name == "bytes" and _is_bytes(f.type) for f in inner)
        return f"{field.name}.bytes" if found else ""
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
    """Neighbouring row groups, together of at least `PART_ROWS` rows where there are that many."""
    start = row = rows = 0
    for k, size in enumerate(groups, 1):
        rows += size
        if rows >= PART_ROWS or (k == len(groups) and rows):
            yield Part(0, file, start, k, row, rows)
            start, row, rows = k, row + rows, 0


def _values(column: Any) -> Iterator[Any]:
    """The values of a column: bytes, arrays, None, or the text of an error.

    Raises:
        BadParquet: the column is damaged.
    """
    import pyarrow.types as types

    with reading():
        while types.is_struct(column.type):  # nulls of the structure are nulls of its field
            column = column.flatten()[0]
    read = _bytes if _is_bytes(column.type) else _array
    for k in range(len(column)):
        with reading():
            row = column.slice(k, 1)
            value = None if row.null_count else read(row)
        yield value


def _bytes(rows: Any) -> bytes | str:
    """The value of one row; the text of an error if it is larger than a file of an image may be."""
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
        "Name a parquet file, or a folder of them, with a column of images.",
    )
