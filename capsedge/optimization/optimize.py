"""``capsedge.optimize``: turn an ONNX file from any tool into a verified faster one, with a report."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsedge import errors
from capsedge.datasets.regression_targets import with_typical_images
from capsedge.errors import EnvironmentProblem, UnsupportedModelError
from capsedge.graph.check import checked
from capsedge.graph.fusion import by_reason
from capsedge.optimization.optimize_options import Batch, OptimizeOptions
from capsedge.options import takes_options
from capsedge.runtime.files.sandbox import SandboxLimits, run_in_sandbox
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import (
    OUTPUT,
    ModelLike,
    as_file,
    as_path,
    check_writable,
    write_bytes,
)
from capsedge.runtime.metadata.table_indices import refused_index_error
from capsedge.runtime.onnx_file.summary import OnnxSummary, read_harmless
from capsedge.runtime.profiling.compare import CAPSEDGE, Entrant, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import Report, Table, shortened_name
from capsedge.runtime.user_metadata import Description, DescriptionLike, describe_model
from capsedge.spec import limits

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import OptimizeKeywords

_STAGE = "stage: "  # prefix of the worker's progress lines
_WORKER = "capsedge.graph.fusion.optimize_graph"


@dataclass(frozen=True, repr=False)
class OptimizationReport(Report):
    """The result of an optimization.

    Attributes:
        output: the file; None if none was written.
        model: its bytes.
        size, source_size: bytes of the file and of the original.
        fused: for each replacement: operator, place, parameters, notes.
        not_fused: parts that were left unchanged: place and reason.
        notes: remarks on the clean-up and the file.
        opset_before, opset: opsets of the standard operators.
        nodes_before, nodes: number of nodes in the graph.
        batch: ``free`` or a number.
        comparisons: number of comparisons with the original file.
        largest_difference: the largest difference in any of them.
        before_ms, after_ms: medians of one inference, measured in alternation; None if not measured.
    """

    output: Path | None
    model: bytes
    size: int
    source_size: int
    fused: tuple[dict[str, Any], ...]
    not_fused: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    opset_before: int
    opset: int
    nodes_before: int
    nodes: int
    batch: str
    comparisons: int
    largest_difference: float
    before_ms: float | None
    after_ms: float | None

    def _lines(self) -> list[str]:
        name = "not written" if self.output is None else self.output.name
        nodes = f"{self.nodes_before} nodes became {self.nodes}"
        first = f"{shortened_name(name)}: {len(self.fused)} operators found, {nodes}"
        return [first, self._verified]

    @property
    def _verified(self) -> str:
        return f"largest difference {self.largest_difference:.2g} in {self.comparisons} comparisons"

    def rows(self) -> list[tuple[str, str]]:
        """The file before and after, remarks, and its comparison with the original."""
        notes = dict.fromkeys((*self.notes, *(n for f in self.fused for n in f["notes"])))
        rows = [
            ("file", "not written" if self.output is None else str(self.output)),
            *([] if self.fused or self.not_fused else [("routing", "none was found")]),
            *(("note", note) for note in notes),
            ("nodes", f"{self.nodes_before} before, {self.nodes} now"),
            ("opset", f"{self.opset_before} before, {self.opset} now"),
            ("batch", self.batch),
            ("size", f"{format_bytes(self.source_size)} before, {format_bytes(self.size)} now"),
        ]
        if self.comparisons:
            rows.append(("verified", f"{self._verified} with the original"))
        if self.gain is not None:
            times = f"{self.before_ms:.3g} ms before, {self.after_ms:.3g} ms now"
            rows.append(("time", f"{times}: {self.gain:.2f} times as fast (one thread, in turns)"))
        return rows

    def tables(self) -> list[Table]:
        """The routing that was replaced, and what was left."""
        fused = [
            (f["operator"], f["tensor"], ", ".join(f"{k} {v}" for k, v in f["parameters"].items()))
            for f in self.fused
        ]
        left = by_reason((e["tensor"], e["reason"]) for e in self.not_fused)
        return [
            Table("fused", ("operator", "makes", "read off"), fused),
            Table("left as it was", ("softmax", "why"), left),
        ]

    @property
    def gain(self) -> float | None:
        """Factor by which one inference became faster."""
        return self.before_ms / self.after_ms if self.before_ms and self.after_ms else None

    def to_dict(self) -> dict[str, Any]:
        """JSON values only, without the model's bytes."""
        document = {k: v for k, v in vars(self).items() if k != "model"}
        document["output"] = None if self.output is None else str(self.output)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in document.items()} | {
            "gain": self.gain
        }


@takes_options(OptimizeOptions)
def optimize(
    model: ModelLike,
    path: Path | str | None = None,
    options: OptimizeOptions = OptimizeOptions(),
    *,
    description: DescriptionLike | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[OptimizeKeywords],
) -> OptimizationReport:
    """Fuse the capsule routing of an ONNX file into operators, clean up the rest, and verify the result.

    The file is processed in a separate process, with limits on time and memory. Nothing is written unless the
    new file computes the same as the original on random and hard inputs.

    Args:
        model: a file, or its bytes.
        path: the file to write; none by default.
        description: the metadata of the new file, as for `export`. If no routing is fused and no batch size
            is given, the rest of the file is left unchanged.
        progress: called with a description of each step.

    Returns:
        A report on what was fused, what was not and why, with the new file's bytes and the times.

    Raises:
        UsageError: the file cannot be read, or the new one cannot be written.
        ArtefactError, UnsupportedModelError: it is not an ONNX file, or one that cannot be optimized.
        ParityError: it cannot be changed without changing its results.

    Example:
        >>> report = capsedge.optimize("foreign.onnx", "fused.onnx")
        >>> [found["operator"] for found in report.found], report.gain
    """
    path = None if path is None else as_path(path, OUTPUT)
    if path is not None:
        check_writable(path)
    batch, measure = options.batch, options.measure
    described = with_typical_images(Description.of(description))
    with as_file(model) as source:
        data, summary = read_harmless(source)
        size, data = len(data), checked(data, str(source))
        if described:
            describe_model(data, described, name=source)  # report errors before the work starts
        if summary.capsedge_nodes:
            opset = summary.opsets.get("", 0)
            count = len(summary.capsedge_nodes)
            several = "" if count == 1 else "s"
            note = f"it holds {count} capsule operator{several} already and is left as it is"
            document, better = _unchanged(opset, note), data
        else:
            document, better = _optimized(data, str(source), summary, described, batch, progress)
        if described:
            made = describe_model(better, described, name=source)
            better = made.data
            warnings = [f"warning: {warning}" for warning in made.warnings]
            document["notes"] = [*document["notes"], str(made), *warnings]
        before = after = None
        if measure and document["inputs"]:
            with as_file(better) as fresh:
                before, after = _times(source, fresh, document, measure, progress)
    if path is not None:
        write_bytes(path, better)
    return _report(path, better, size, document, (before, after))


def _report(
    path: Path | None,
    better: bytes,
    source_size: int,
    document: dict[str, Any],
    times: tuple[float | None, float | None],
) -> OptimizationReport:
    return OptimizationReport(
        path,
        better,
        len(better),
        source_size,
        tuple(document["fused"]),
        tuple(document["not_fused"]),
        tuple(document["notes"]),
        document["opset_before"],
        document["opset"],
        document["nodes_before"],
        document["nodes"],
        document["batch"],
        document["comparisons"],
        document["largest_difference"],
        *times,
    )


def _unchanged(opset: int, note: str) -> dict[str, Any]:
    numbers = dict.fromkeys(("nodes_before", "nodes", "comparisons", "largest_difference"), 0)
    same = {"opset_before": opset, "opset": opset, "batch": "as it is", "inputs": {}}
    return {"fused": [], "not_fused": [], "notes": [note], **numbers, **same}


def _optimized(
    data: bytes,
    name: str,
    summary: OnnxSummary,
    description: Description,
    batch: Batch,
    progress: Progress,
) -> tuple[dict[str, Any], bytes]:
    """As `_run_optimizer`; a file without routing that only gets metadata is left unchanged."""
    only_described = bool(description) and not isinstance(batch, int)
    try:
        document, better = _run_optimizer(data, name, batch, progress)
    except UnsupportedModelError as error:
        if not only_described:
            raise
        note = f"only its metadata changes: {error.what} {error.why}"
        return _unchanged(summary.opsets.get("", 0), note), data
    if only_described and not document["fused"]:
        note = "no capsule routing was fused; only its metadata changes"
        left = _unchanged(document["opset_before"], note)
        return left | {"not_fused": document["not_fused"]}, data
    return document, better


def _run_optimizer(
    data: bytes, name: str, batch: Batch, progress: Progress
) -> tuple[dict[str, Any], bytes]:
    """Run the worker and return its answer.

    Raises:
        CapsedgeError: the worker reports one, crashes, or does not finish in time.
    """

    def on_line(line: str) -> None:
        if line.startswith(_STAGE):
            progress(line.removeprefix(_STAGE))

    bounds = SandboxLimits(limits.OPTIMIZE_SECONDS, limits.OPTIMIZE_BYTES, limits.ARRAY_BYTES)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with run_in_sandbox(_WORKER, file, bounds, words=[str(batch)], on_line=on_line) as ended:
            code, message = ended.exit_code, ended.log
            header, better = ended.output.readline(), ended.output.read()
    if code is None:
        raise UnsupportedModelError(
            f"{name} takes too long to optimize.",
            f"After {limits.OPTIMIZE_SECONDS} s, it had reached: {_stage(message)}.",
            "Use the file as it is.",
        )
    if code or not header.startswith(b"{"):
        raise UnsupportedModelError(
            f"{name} cannot be optimized.",
            f"The process ended ({code}) while {_stage(message)}; it may use {limits.OPTIMIZE_BYTES >> 30} "
            "GiB.",
            "Use the file as it is.",
        )
    document = json.loads(header)
    if "error" in document:
        kind, *words = document["error"]
        raise getattr(errors, kind, EnvironmentProblem)(*words)
    return document, better


def _stage(message: str) -> str:
    stages = [line.removeprefix(_STAGE) for line in message.splitlines() if line.startswith(_STAGE)]
    return stages[-1] if stages else "starting"


def _times(
    source: Path, fresh: Path, document: dict[str, Any], seconds: float, progress: Progress
) -> tuple[float | None, float | None]:
    """Medians in milliseconds: the original in ONNX Runtime, the new file in this package, in turns."""
    batch = document["batch"]
    images = 1 if batch == "free" else int(batch)
    feeds = _feeds(document["inputs"], images)
    entrants = [
        Entrant("before", Specification("ort", str(source), "", threads=1), "the file"),
        Entrant("after", Specification(CAPSEDGE, str(fresh), "", threads=1), "the file"),
    ]
    try:
        found = compare(entrants, feeds, RunLimits(0.1, seconds, 10), progress)
    except EnvironmentProblem as error:
        progress(f"not measured: with random inputs of batch {images}, {_failure(error, feeds)}")
        return None, None
    medians = [None if e.latency is None else float(e.latency.median) for e in found.entries]
    return medians[0], medians[1]


# ONNX Runtime's words for a node that fails, without the line of its source.
_AT_NODE = re.compile(
    r"while running (\w+) node\. Name:'([^']*)' Status Message: (?:/\S+:\d+ .* was false\. )?(.*)"
)


def _failure(error: EnvironmentProblem, feeds: dict[str, Any]) -> str:
    """Why a file cannot be timed, in a sentence."""
    index = refused_index_error(error.why, feeds)
    if index is not None:
        return f"{index.what[0].lower()}{index.what[1:]} {index.why}"
    told = _AT_NODE.search(error.why)
    if told is None:
        return f"{error.what[0].lower()}{error.what[1:]} {error.why}"
    return f"the {told[1]} node '{told[2]}' fails: {told[3]}"


def _feeds(inputs: dict[str, Any], batch: int) -> dict[str, Any]:
    """Uniform random numbers; for integers ones, or the only index of a table with one entry."""
    rng = np.random.default_rng(0)
    found = {}
    for name, (dims, kind, entries) in inputs.items():
        shape = [(batch if k == 0 else 1) if d == 0 else d for k, d in enumerate(dims)]
        floating = np.issubdtype(np.dtype(kind), np.floating)
        whole = np.full(shape, min(1, entries - 1) if entries else 1)
        found[name] = (rng.random(shape) if floating else whole).astype(kind)
    return found
