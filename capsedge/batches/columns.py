"""The table of answers: its columns, and its rows as parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from capsedge.batches.answering import Answerer, Row
from capsedge.batches.items import PART_ROWS
from capsedge.batches.parquet_file import import_parquet, reading

PLAN = b"capsedge.plan"


@dataclass
class Counts:
    """What a table holds.

    Attributes:
        images: rows.
        failed: rows with an error.
        nothing: rows of images with nothing to see.
    """

    images: int = 0
    failed: int = 0
    nothing: int = 0

    def add(self, other: Counts) -> None:
        """Add those of another part."""
        self.images += other.images
        self.failed += other.failed
        self.nothing += other.nothing

    def to_dict(self) -> dict[str, int]:
        """JSON values."""
        return {"images": self.images, "failed": self.failed, "nothing": self.nothing}


def schema_of(answerer: Answerer) -> Any:
    """The columns, a `pyarrow.Schema`."""
    import_parquet()
    import pyarrow as pa

    fields: list[tuple[str, Any]] = [("image", pa.string())]
    if answerer.values:
        fields += [(name, pa.float64()) for name in answerer.values]
    else:
        fields += [("label", pa.string()), ("score", pa.float64())]
    if answerer.multi_label:
        label = pa.struct([("label", pa.string()), ("score", pa.float64())])
        fields.append(("labels", pa.list_(label)))
    fields.append(("nothing", pa.string()))
    if answerer.cascade:
        fields.append(("long_way", pa.bool_()))
    kinds = {"scores": pa.list_(pa.float64()), "poses": pa.list_(pa.list_(pa.float32()))}
    fields += [(name, kinds[name]) for name in answerer.outputs]
    return pa.schema([*fields, ("error", pa.string())])


def part_bytes(rows: Iterable[Row], schema: Any) -> tuple[bytes, Counts]:
    """A parquet file of the rows, with a row group for every `PART_ROWS` rows, and its counts."""
    import pyarrow as pa

    rest, counts, sink = iter(rows), Counts(), pa.BufferOutputStream()
    with table_writer(sink, schema) as writer:
        while few := list(islice(rest, PART_ROWS)):
            counts.images += len(few)
            counts.failed += sum(row.get("error") is not None for row in few)
            counts.nothing += sum(row.get("nothing") is not None for row in few)
            writer.write_table(pa.Table.from_pylist(few, schema=schema))
    return sink.getvalue().to_pybytes(), counts


def table_writer(target: Any, schema: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter`: the same rows give the same bytes."""
    return import_parquet().ParquetWriter(
        target, schema, compression="zstd", write_page_checksum=True, store_schema=False
    )


def merge(parts: Iterable[bytes], target: BinaryIO, schema: Any, plan: str) -> int:
    """One table of the rows of parts, in their order; returns how many there are.

    Args:
        parts: the content of each.
        plan: what the table states of itself.

    Raises:
        BadParquet: a part is damaged.
    """
    rows = 0
    with table_writer(target, schema) as writer:
        for part in parts:
            for table in _groups(part):
                rows += table.num_rows
                writer.write_table(table)
        writer.add_key_value_metadata({PLAN: plan})
    return rows


def _groups(part: bytes) -> Iterator[Any]:
    import pyarrow as pa

    with reading():
        file = import_parquet().ParquetFile(pa.BufferReader(part))
    with file:
        for k in range(file.num_row_groups):
            with reading():
                table = file.read_row_group(k, use_threads=False)
            yield table
