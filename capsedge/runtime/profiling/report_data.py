"""The numbers of a profile, which every renderer reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from capsedge.runtime.files.text import format_milliseconds, printable
from capsedge.runtime.onnx_file.layer_map import GROUPS
from capsedge.runtime.profiling.compare import SpeedComparison
from capsedge.runtime.profiling.machine_peaks import Peaks
from capsedge.runtime.profiling.operator_times import (
    BETWEEN,
    NETWORKS,
    OperatorTimes,
    TimedOperator,
)
from capsedge.runtime.profiling.startup import Startup
from capsedge.runtime.profiling.timing import StableWindow, Statistics
from capsedge.runtime.result_summary import shortened_name

OTHER = "other"


@dataclass(frozen=True)
class ReportRow:
    """Operators that belong together: a layer and iteration, a group, or an operator type.

    Attributes:
        name, group: its name, and one of `GROUPS` or ``other``.
        operators: number of operators.
        milliseconds, share, operations, bytes: their sums; ``share`` is of all operators' time.
        attainable: milliseconds that they would take at the machine's measured peaks; None if unknown.
    """

    name: str
    group: str
    operators: int
    milliseconds: float
    share: float
    operations: float
    bytes: int
    attainable: float | None


@dataclass(repr=False)
class Run:
    """One model at one batch size.

    Attributes:
        model: file name.
        sha256: SHA-256 of the file.
        backend: package versions, and which operators ran (``fused`` or ``portable``).
        device, threads, batch: as measured; ``threads`` 0 is ONNX Runtime's own choice.
        samples: seconds of every timed run, in order.
        latency: their statistics.
        stable: their stable window.
        startup: cold start and memory of a separate process; None if it was left out.
        operators: time by operator; None if it was left out or is unavailable.
        warnings: reasons to distrust the measurement.
        escalated: for a cascade, the share of the batch that its large network decided; None for other
            models.
    """

    model: str
    sha256: str
    backend: str
    device: str
    threads: int
    batch: int
    samples: list[float]
    latency: Statistics
    stable: StableWindow
    startup: Startup | None = None
    operators: OperatorTimes | None = None
    warnings: list[str] = field(default_factory=list)
    escalated: float | None = None

    def __str__(self) -> str:
        median = format_milliseconds(self.latency.median)
        return f"median {median} ms, {self.throughput:.0f} images/s, {self.backend}, {self.device}"

    def __repr__(self) -> str:
        return f"<Run {shortened_name(self.model)}, batch {self.batch}: {printable(self)}>"

    @property
    def throughput(self) -> float:
        """Images per second, at the mean latency."""
        return self.latency.throughput(self.batch)

    @property
    def beyond_p99(self) -> int:
        """Number of runs slower than the 99th percentile, which charts leave out."""
        return sum(1e3 * s > self.latency.p99 for s in self.samples)

    @property
    def named(self) -> bool:
        """Whether the file names capsule layers; if not, operators are grouped by type."""
        return any(o.group for o in (self.operators.operators if self.operators else ()))

    @property
    def layers(self) -> list[ReportRow]:
        """Layers and routing iterations in the order in which they begin; operator types in files of other
        tools."""
        return self._rows(lambda o: (_label(o, self.named), o.group or OTHER))

    @property
    def groups(self) -> list[ReportRow]:
        """Stem, votes, routing, classifier, decoder; empty in files from other tools."""
        rows = self._rows(lambda o: (o.group or OTHER, o.group or OTHER)) if self.named else []
        return sorted(
            rows, key=lambda r: GROUPS.index(r.group) if r.group in GROUPS else len(GROUPS)
        )

    @property
    def networks(self) -> list[ReportRow]:
        """The small network of a cascade, the large one, and what is between them; empty for others."""
        rows = self._rows(lambda o: (o.network, OTHER))
        return sorted((r for r in rows if r.name), key=lambda r: NETWORKS.index(r.name))

    def _rows(self, key: Any) -> list[ReportRow]:
        members: dict[tuple[str, str], list[TimedOperator]] = {}
        for operator in self.operators.operators if self.operators else ():
            members.setdefault(key(operator), []).append(operator)
        return [_row(name, group, operators) for (name, group), operators in members.items()]

    def to_dict(self, samples: bool = True) -> dict[str, Any]:
        """JSON values only."""
        document = {
            "model": self.model,
            "sha256": self.sha256,
            "backend": self.backend,
            "device": self.device,
            "threads": self.threads,
            "batch": self.batch,
            "latency_ms": asdict(self.latency),
            "throughput_images_per_second": self.throughput,
            "stable_window": asdict(self.stable),
            "startup": asdict(self.startup) if self.startup else None,
            "operators": None,
            "groups": [asdict(row) for row in self.groups],
            "layers": [asdict(row) for row in self.layers],
            **self._cascade(),
            "warnings": self.warnings,
        }
        if self.operators is not None:
            times = {k: v for k, v in asdict(self.operators).items() if k != "spans"}
            document["operators"] = {**times, "attributed": self.operators.attributed}
        if samples:
            document["samples_ms"] = [1e3 * s for s in self.samples]
        return document

    def _cascade(self) -> dict[str, Any]:
        if self.escalated is None:
            return {}
        rows = [asdict(row) for row in self.networks]
        return {"escalated_share": self.escalated, "networks": rows}


def _label(operator: TimedOperator, named: bool) -> str:
    if operator.network == BETWEEN:
        return BETWEEN
    label = operator.label if named else operator.kind
    return f"{operator.network}: {label}" if operator.network and named else label


def _row(name: str, group: str, members: list[TimedOperator]) -> ReportRow:
    known = [o.attainable for o in members if o.attainable is not None]
    return ReportRow(
        name=name,
        group=group,
        operators=len(members),
        milliseconds=sum(o.microseconds for o in members) / 1e3,
        share=sum(o.share for o in members),
        operations=sum(o.operations for o in members),
        bytes=sum(o.bytes for o in members),
        attainable=sum(known) / 1e3 if len(known) == len(members) else None,
    )


@dataclass(repr=False)
class ReportData:
    """The measurements of a profile.

    Attributes:
        machine: processor, system and versions.
        peaks: the measured peaks of the machine; None if operators were left out.
        runs: one per model and batch size.
        comparisons: backends and models in turns, one per batch size.
    """

    machine: dict[str, str]
    peaks: Peaks | None
    runs: list[Run]
    comparisons: list[SpeedComparison] = field(default_factory=list)

    def to_dict(self, samples: bool = True) -> dict[str, Any]:
        """JSON values only; ``samples`` adds the time of every run."""
        return {
            "schema": 1,
            "machine": self.machine,
            "peaks": asdict(self.peaks) if self.peaks else None,
            "runs": [run.to_dict(samples) for run in self.runs],
            "comparisons": [comparison.to_dict(samples) for comparison in self.comparisons],
        }
