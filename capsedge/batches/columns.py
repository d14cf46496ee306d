"""The table of answers: its columns, and its rows as parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from capsedge.batches.answering import Answerer, Row
from capsedge.batches.items import PART_ROWS
from capsedge.batches.parquet_file import import_parquet

COUNTS = b"capsedge.counts"
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
    """A parquet file of the rows, with its counts in the metadata; a row group for every `PART_ROWS` rows."""
    import pyarrow as pa

    rest, counts, sink = iter(rows), Counts(), pa.BufferOutputStream()
    with table_writer(sink, schema) as writer:
        while few := list(islice(rest, PART_ROWS)):
            counts.images += len(few)
            counts.failed += sum(row.get("error") is not None for row in few)
            counts.nothing += sum(row.get("nothing") is not None for row in few)
            writer.write_table(pa.Table.from_pylist(few, schema=schema))
        writer.add_key_value_metadata({COUNTS: json.dumps(counts.to_dict())})
    return sink.getvalue().to_pybytes(), counts


def table_writer(target: Any, schema: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter`: the same rows give the same bytes."""
    return import_parquet().ParquetWriter(
        target, schema, compression="zstd", write_page_checksum=True, store_schema=False
    )


def counts_of(file: BinaryIO) -> Counts:
    """The counts of a part.

    Raises:
        ValueError: the file has none.
    """
    stated = import_parquet().read_metadata(file).metadata or {}
    counts = json.loads(stated.get(COUNTS, b"null"))
    if not isinstance(counts, dict):
        raise ValueError("it states no counts")
    return Counts(**counts)


def merge(parts: Sequence[Any], target: BinaryIO, schema: Any, plan: str) -> None:
    """One table of the rows of parts, in their order.

    Args:
        parts: functions that open a part, each a context manager.
        plan: the digest of the plan, which the table states.
    """
    with table_writer(target, schema) as writer:
        for opened in parts:
            with opened() as part:
                for table in _groups(part):
                    writer.write_table(table)
        writer.add_key_value_metadata({PLAN: plan})


def _groups(part: BinaryIO) -> Iterator[Any]:
    with import_parquet().ParquetFile(part, page_checksum_verification=True) as file:
        for k in range(file.num_row_groups):
            yield file.read_row_group(k)
