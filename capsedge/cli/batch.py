"""``capsedge batch``: classifies any number of images, here or on a cluster, into one table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

from capsedge.batch_inference.batch_options import BatchOptions
from capsedge.cli import _options, _output, _process
from capsedge.cli._options import Argument, Only, grouped
from capsedge.cli._output import bar
from capsedge.cli._paths import PathRole, check_data, check_model, model_file_unless_name
from capsedge.errors import ExitCode
from capsedge.options import Option
from capsedge.runtime.progress import Progress
from capsedge.runtime.runtime_options import RuntimeOptions

_LINES = 10_000  # images between progress lines, if the total is not known


def _local(text: str) -> Path | None:
    """The path of an address on this machine."""
    from capsedge.batch_inference.storage import is_remote, plain

    return None if is_remote(text) else Path(plain(text))


def _local_output(text: str) -> Path | None:
    """The path of an output on this machine, which is not named like a file of another format."""
    from capsedge.batch_inference.journal import check_batch_output

    check_batch_output(text)
    return _local(text)


def _local_model(text: str) -> Path | None:
    """The path of a model on this machine; None if it is remote or the name of a model."""
    path = _local(text)
    return None if path is None else model_file_unless_name(path)


def _written(output: Path) -> list[Path]:
    """The path that is written last: the file, or the marker of a complete folder of parts."""
    from capsedge.batch_inference.journal import SUCCESS, is_single_table

    return [output if is_single_table(str(output)) else output / SUCCESS]


Model = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="ONNX file, TensorRT engine, name from the zoo (digits-em), or address.",
        complete="zoo",
    ),
    PathRole(reads=True, check=check_model, named=_local_model),
]
BatchSource = Annotated[
    str,
    Argument(
        metavar="SOURCE",
        help="Folder of images, parquet files or tar archives; or one parquet, tar, idx, npz or npy file; or "
        "an address such as s3://bucket/folder.",
    ),
    PathRole(reads=True, check=check_data, named=_local),
]
Output = Annotated[
    str,
    Option(
        "-o",
        "--output",
        help="A file *.parquet, or a folder (or an address) for a folder of parts.",
    ),
    PathRole(written=_written, creates=True, named=_local_output),
]


@grouped
def command(
    model: Model,
    source: BatchSource,
    output: Output,
    options: BatchOptions,
    runtime: Annotated[RuntimeOptions, Only("device", "threads", "ops")],
    as_json: _options.Json = False,
) -> None:
    """Classify any number of images into a parquet table.

    It runs on this machine, or on a Ray cluster with --cluster.

    If an image cannot be read, its row says why, the others are classified, and the exit code is 2.
    """
    from capsedge.batch_inference.batch import batch

    # Ray prints messages of the cluster, and standard output is for the result.
    with redirect_stdout(sys.stderr), _process.resumable("parts"), _progress() as progress:
        report = batch(model, source, output, options, runtime, progress=progress)
    _output.print_report(report, as_json)
    if report.failed:
        _output.log(
            f"{report.failed:,} of {report.images:,} images could not be read; see the column 'error'"
        )
        raise SystemExit(int(ExitCode.USAGE))


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line after every tenth, or after every `_LINES` images."""
    if not sys.stderr.isatty():
        shown = 0

        def line(_stage: str, done: int = 0, total: int | None = None) -> None:
            nonlocal shown
            reached = done // _LINES if total is None else 10 * done // max(total, 1)
            if reached > shown:
                shown = reached
                _output.log(
                    f"{done:,} images" if total is None else f"{done:,} of {total:,} images"
                )

        yield line
        return
    with bar() as update:
        yield update
