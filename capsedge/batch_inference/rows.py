"""Make the table of predictions: its columns, and one row for each image, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.batch_inference.items import PART_ROWS, Item
from capsedge.batch_inference.parquet import import_parquet, readable_errors
from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.backend import usable_cores
from capsedge.runtime.files.text import encodable, printable
from capsedge.runtime.images.inputs import ImageReader, Size
from capsedge.runtime.images.preprocessing import sized
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.session.masks import mask_png
from capsedge.runtime.session.predictions import Prediction
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import REGRESSION

# --- Rows ---

GROUP = 64  # images per run; the same everywhere, since the size may change the last bits
OUTPUTS = ("scores", "poses")
ERROR_CHARACTERS = 1000
_FIXED = ("image", "label", "score", "labels", "atypical", "escalated", "error", *OUTPUTS)
Row: TypeAlias = dict[str, Any]
_Prepared: TypeAlias = "tuple[NDArray[np.float32], Size]"


class RowMaker:
    """Turns items into rows.

    Args:
        session: session of a model that states its classes and its preprocessing.
        outputs: the elements of `OUTPUTS` that become columns.
        invert: for dark ink on a light background.
        threads: images that are decoded at the same time; one per core by default.

    Raises:
        UsageError: the model has no such output.
        ArtefactError: the model's file does not state its preprocessing.
    """

    def __init__(
        self,
        session: Session,
        outputs: Sequence[str] = (),
        invert: bool = False,
        threads: int | None = None,
    ) -> None:
        self.session, self._invert = session, invert
        self._preprocessing = session.image_input.preprocessing
        metadata = session.image_input.metadata
        self.task, declared = metadata.task, metadata.outputs
        names = declared.names if declared is not None and self.task == REGRESSION else ()
        self.values = tuple(f"{name}_value" if name in _FIXED else name for name in names)
        self.multi_label = session.roles.multi_label
        self.segmentation = session.roles.segmentation
        self.cascade = session.roles.escalated is not None
        self.outputs = tuple(dict.fromkeys(outputs))
        _check_outputs(session, self.outputs)
        workers = usable_cores() if threads is None else threads
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None

    def rows(self, items: Iterable[Item]) -> Iterator[Row]:
        """One row for each item; an item that cannot be predicted has an error in its row."""
        rest = iter(items)
        while group := self._prepared(islice(rest, GROUP)):
            yield from self._rows_of_group(group)

    def _prepared(self, items: Iterator[Item]) -> list[tuple[str, _Prepared | str]]:
        """The names of items, each with the model's input or an error; few undecoded items are in memory."""
        prepared: list[tuple[str, _Prepared | str]] = []
        while few := list(islice(items, self._workers)):
            inputs = (
                map(self._prepare, few)
                if self._pool is None
                else self._pool.map(self._prepare, few)
            )
            prepared += zip((item.name for item in few), inputs, strict=True)
        return prepared

    def _prepare(self, item: Item) -> _Prepared | str:
        """The model's input ``[C, H, W]`` in its layout with the image's size, or the text of an error."""
        if item.error:
            return item.error
        p = self._preprocessing
        try:
            image = _shaped(item.image, p)
            if isinstance(image, np.ndarray) and image.dtype.kind == "f":
                reader = ImageReader(p, self._invert, prepared=True)
                ((prepared, size),) = reader.sized_images(image.astype(np.float32, copy=False))
                return prepared.astype(np.float32, copy=False), size
            return sized(image, p, self._invert, "The image")
        except UsageError as error:
            return f"{error.what} {error.why}"

    def _rows_of_group(self, group: Sequence[tuple[str, _Prepared | str]]) -> Iterator[Row]:
        images = [image for _, image in group if not isinstance(image, str)]
        answers = iter(self._predicted(images))
        for name, image in group:
            answer = image if isinstance(image, str) else next(answers)
            yield self._row(name, answer)

    def _predicted(self, images: Sequence[_Prepared]) -> list[Prediction | str]:
        """The predictions; if the model fails on a batch, it runs image by image."""
        if not images:
            return []
        stacked = np.stack([image for image, _ in images])
        sizes = [size for _, size in images]
        try:
            return list(self.session.predict(stacked, prepared=True, batch_size=GROUP, sizes=sizes))
        except CapsedgeError as error:
            if len(images) == 1:
                return [f"{error.what} {error.why}"]
            return [one for image in images for one in self._predicted([image])]

    def _row(self, name: str, prediction: Prediction | str) -> Row:
        row: Row = {"image": encodable(name)}
        if isinstance(prediction, str):
            return row | {"error": printable(prediction.strip())[:ERROR_CHARACTERS]}
        row |= {"atypical": prediction.atypical or None}
        if self.values:
            return row | dict(zip(self.values, (v.value for v in prediction.values), strict=True))
        if prediction.mask is not None:
            shares = [area.share for area in prediction.areas]
            return row | {
                "mask": mask_png(prediction.mask, prediction.mask_classes),
                "shares": shares,
            }
        row |= {"label": prediction.label, "score": prediction.score}
        if self.multi_label:
            row["labels"] = [
                {"label": each.name, "score": each.score} for each in prediction.labels
            ]
        if self.cascade:
            row["escalated"] = prediction.escalated
        if "scores" in self.outputs:
            row["scores"] = prediction.scores.tolist()
        if "poses" in self.outputs:
            row["poses"] = prediction.poses.tolist()
        return row


def _shaped(image: Any, p: Preprocessing) -> Any:
    """A list of values in the model's input shape; anything else unchanged."""
    if not isinstance(image, np.ndarray) or image.ndim != 1:
        return image
    shape = p.shape if image.dtype.kind == "f" else (p.height, p.width, p.channels)
    if image.size != np.prod(shape):
        raise UsageError(
            f"The image is a list of {image.size:,} values.", f"The model takes {list(shape)}."
        )
    return image.reshape(shape)


def _check_outputs(session: Session, outputs: Sequence[str]) -> None:
    scores = session.roles.scores is not None and not session.roles.segmentation
    has = {"scores": scores, "poses": session.roles.poses is not None}
    for name in outputs:
        if not has.get(name):
            raise UsageError(
                f"The model has no {name} for a table.",
                f"It has {', '.join(known for known in OUTPUTS if has[known]) or 'only values or masks'}.",
                "Leave them out.",
            )


# --- Columns, and rows as parquet ---

PLAN = b"capsedge.plan"


@dataclass
class Counts:
    """The counts of a table.

    Attributes:
        images: rows.
        failed: rows with an error.
        atypical: rows whose images have nothing to see.
    """

    images: int = 0
    failed: int = 0
    atypical: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another part."""
        self.images += other.images
        self.failed += other.failed
        self.atypical += other.atypical

    def to_dict(self) -> dict[str, int]:
        """JSON values."""
        return {"images": self.images, "failed": self.failed, "atypical": self.atypical}


def schema_of(row_maker: RowMaker) -> Any:
    """The columns, a `pyarrow.Schema`."""
    import_parquet()
    import pyarrow as pa

    fields: list[tuple[str, Any]] = [("image", pa.string())]
    if row_maker.values:
        fields += [(name, pa.float64()) for name in row_maker.values]
    elif row_maker.segmentation:
        fields += [("mask", pa.binary()), ("shares", pa.list_(pa.float64()))]
    else:
        fields += [("label", pa.string()), ("score", pa.float64())]
    if row_maker.multi_label:
        label = pa.struct([("label", pa.string()), ("score", pa.float64())])
        fields.append(("labels", pa.list_(label)))
    fields.append(("atypical", pa.string()))
    if row_maker.cascade:
        fields.append(("escalated", pa.bool_()))
    kinds = {"scores": pa.list_(pa.float64()), "poses": pa.list_(pa.list_(pa.float32()))}
    fields += [(name, kinds[name]) for name in row_maker.outputs]
    return pa.schema([*fields, ("error", pa.string())])


def part_bytes(rows: Iterable[Row], schema: Any) -> tuple[bytes, Counts]:
    """A parquet file of the rows, with a row group for every `PART_ROWS` rows, and its counts."""
    import pyarrow as pa

    rest, counts, sink = iter(rows), Counts(), pa.BufferOutputStream()
    with table_writer(sink, schema) as writer:
        while few := list(islice(rest, PART_ROWS)):
            counts.images += len(few)
            counts.failed += sum(row.get("error") is not None for row in few)
            counts.atypical += sum(row.get("atypical") is not None for row in few)
            writer.write_table(pa.Table.from_pylist(few, schema=schema))
    return sink.getvalue().to_pybytes(), counts


def table_writer(target: Any, schema: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter`: the same rows give the same bytes."""
    return import_parquet().ParquetWriter(
        target, schema, compression="zstd", write_page_checksum=True, store_schema=False
    )


def merge(parts: Iterable[bytes], target: BinaryIO, schema: Any, plan: str) -> int:
    """Merge the rows of the parts, in order, into one table; return the number of rows."""
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

    with readable_errors():
        file = import_parquet().ParquetFile(pa.BufferReader(part))
    with file:
        for k in range(file.num_row_groups):
            with readable_errors():
                table = file.read_row_group(k, use_threads=False)
            yield table
