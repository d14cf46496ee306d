"""Classify any number of images into one table (``capsedge.batch``)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capsedge.batch_inference.batch_options import BatchOptions
from capsedge.batch_inference.items import ImageSource, Part
from capsedge.batch_inference.journal import Journal, check_batch_output
from capsedge.batch_inference.model_bytes import ModelBytes, read_model
from capsedge.batch_inference.parquet import import_parquet
from capsedge.batch_inference.rows import Counts, RowMaker, part_bytes, schema_of
from capsedge.batch_inference.sources import open_source
from capsedge.batch_inference.storage import is_outside_source, is_remote, plain
from capsedge.errors import UsageError
from capsedge.options import takes_options
from capsedge.runtime.backends.backend import missing_graphs
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.load import load
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import Report
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.score_checks import score_warnings
from capsedge.runtime.session.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import BatchKeywords

# --- The report ---


@dataclass(frozen=True, repr=False)
class BatchReport(Report):
    """A finished table of predictions.

    Attributes:
        model: its path, name or address.
        source: where the images are.
        output: the table: a file, or a folder of parts.
        kind: the kind of source: ``folder``, ``parquet``, ``tar``, ``idx``, ``npz`` or ``npy``.
        images: rows of the table.
        failed: rows with an error.
        atypical: rows whose images have nothing to see.
        parts: parts in which the source was read.
        resumed: parts that an earlier run had already finished.
        seconds: duration of this run.
        warnings: reasons why the model's scores may be meaningless, and why a GPU ran without CUDA graphs.
    """

    model: str
    source: str
    output: str
    kind: str
    images: int
    failed: int
    atypical: int
    parts: int
    resumed: int
    seconds: float
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def _lines(self) -> list[str]:
        return [f"{self.output}: {self.images:,} images, {self.failed:,} with an error"]

    def rows(self) -> list[tuple[str, str]]:
        """The table, and the images in it."""
        rows = [
            ("table", self.output),
            ("model", self.model),
            ("source", f"{self.source} ({self.kind})"),
            (
                "images",
                f"{self.images:,}, {self.atypical:,} with nothing to see, {self.failed:,} with an error",
            ),
        ]
        if self.resumed:
            rows.append(("resumed", f"{self.resumed} of {self.parts} parts from before"))
        return rows


# --- ``capsedge.batch`` ---

FORMAT = 2  # version of the table format: an unfinished run with another version is not resumed


@takes_options(BatchOptions, RuntimeOptions)
def batch(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: BatchOptions = BatchOptions(),
    runtime: RuntimeOptions = RuntimeOptions(),
    *,
    progress: Progress = silent,
    **_keywords: Unpack[BatchKeywords],
) -> BatchReport:
    """Classify any number of images, or compute the values of a regression, into a parquet table.

    The table has one row for each image, in the order of the source; an image that cannot be read has the
    error in its row. Only a part of the source is in memory at any time.

    A resumed run produces the same table, bit for bit, as an uninterrupted one. On a cluster, ``threads`` are
    the CPUs of one worker, 1 by default.

    Args:
        model: as for `load`, or an fsspec address such as ``s3://bucket/model.onnx``.
        source: a folder of images, with its subfolders; a parquet file, tar archive, or a folder of them; an
            idx, npz or npy file; given as a path or an fsspec address.
        output: a file ``*.parquet``, or a folder of parts, which may be an fsspec address.
        progress: called with the number of images done and the total, which is None if not known in advance.

    Returns:
        A report with the counts and the location of the table.

    Raises:
        UsageError: the source or the model cannot be read, the output is inside the source, already exists or
            has another format, or an argument is wrong.
        EnvironmentProblem: pyarrow, Ray or a package for an address is missing, or the disk is full.
        ArtefactError: the model's file is damaged, or does not state its classes and its preprocessing; or a
            part of the continued run is damaged.

    Example:
        >>> capsedge.batch("digits-em", "photos/", "answers.parquet").images
        60000
    """
    import_parquet()
    where, target = os.fspath(source), os.fspath(output)
    if not is_outside_source(target, where):
        raise UsageError(
            f"{target} is inside the source {where}.",
            "The next run would read it.",
            "Choose an output outside the source.",
        )
    check_batch_output(target)
    begun = time.monotonic()
    if isinstance(model, str):
        model = plain(model)
    # Read once, so that the bytes that compute are those that the plan names and that are sent.
    content = read_model(model) if is_remote(str(model)) or options.cluster is not None else None
    with _session(model, content, options.cluster, runtime) as session:
        image_source = open_source(where, options.column)
        warnings = score_warnings(session)
        row_maker = RowMaker(session, options.outputs, options.invert, runtime.threads)
        schema = schema_of(row_maker)
        parts = image_source.parts()
        journal = Journal(target, _plan(session, content, image_source, options), parts)
        try:
            done = journal.begin(options.resume, options.force)
            if not journal.complete:
                left = [part for part in parts if part.number not in done]
                produced = _produced(
                    row_maker, schema, image_source, left, content, options, runtime
                )
                _keep(journal, produced, parts, progress)
                _check_not_empty(journal, where)
                journal.complete_table(schema)
        finally:
            journal.close()
        if why := missing_graphs(session.backend, runtime.graphs):
            warnings = (*warnings, f"{model} {why}")
    seconds = time.monotonic() - begun
    counts = journal.counts
    return BatchReport(
        str(model), where, target, image_source.kind, counts.images, counts.failed, counts.atypical,
        len(parts), len(done), seconds, warnings,
    )  # fmt: skip


def _session(
    model: Any, content: ModelBytes | None, cluster: str | None, options: RuntimeOptions
) -> Session:
    """The session of this process; on a cluster, it only determines the columns of the table."""
    if cluster is not None and options.device not in (None, "cpu"):
        raise UsageError(
            f"device is '{options.device}' on a cluster.",
            "Its workers compute on CPUs.",
            "Leave it out; or use capsedge.batch_inference.ray_step.Predictor, which takes a device.",
        )
    if content is not None:
        return content.load(options.threads, options.ops)
    session: Session = load(model, options)
    return session


def _plan(
    session: Session, content: ModelBytes | None, source: ImageSource, options: BatchOptions
) -> dict[str, Any]:
    """Everything besides the parts that determines the bits of the table."""
    return {
        "format": FORMAT,
        "model": sha256(session.path) if content is None else content.sha256,
        "ops": session.backend.ops,
        "gpu": session.backend.gpu is not None,
        "kind": source.kind,
        "column": source.column,
        "outputs": options.outputs,
        "invert": options.invert,
    }


def _produced(
    row_maker: RowMaker,
    schema: Any,
    source: ImageSource,
    parts: Sequence[Part],
    content: ModelBytes | None,
    options: BatchOptions,
    runtime: RuntimeOptions,
) -> Iterator[tuple[int, bytes, Counts]]:
    """The parts as parquet, with their numbers and counts, in any order."""
    if options.cluster is not None:
        assert content is not None  # read above
        from capsedge.batch_inference.cluster import PartTask, predict_parts, versions

        work = PartTask(
            source, runtime.threads or 1, runtime.ops, options.outputs, options.invert,
            versions(row_maker.session),
        )  # fmt: skip
        yield from predict_parts(options.cluster, content, work, parts)
        return
    for part in parts:
        yield (part.number, *part_bytes(row_maker.rows(source.read(part)), schema))


def _keep(
    journal: Journal,
    produced: Iterator[tuple[int, bytes, Counts]],
    parts: Sequence[Part],
    progress: Progress,
) -> None:
    known = [part.rows for part in parts]
    total = None if None in known else sum(rows for rows in known if rows is not None)
    if journal.counts.images:
        progress("classifying", journal.counts.images, total)
    for number, content, counts in produced:
        journal.put(number, content, counts)
        progress("classifying", journal.counts.images, total)


def _check_not_empty(journal: Journal, source: str) -> None:
    if journal.counts.images == 0:
        journal.abandon()
        raise UsageError(f"{source} holds no images.", "", "Pass a source with images.")
